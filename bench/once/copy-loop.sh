#!/bin/sh
# Each file of a folder by a separate \copy, as a shell loop would do: copy-loop.sh PSQL URL TABLE FOLDER
set -eu
for file in "$4"/*; do
    "$1" -X -q -v ON_ERROR_STOP=1 -d "$2" -c "\\copy $3 from '$file' (format csv)"
done
