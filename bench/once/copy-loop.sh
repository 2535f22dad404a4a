#!/bin/sh
# Each file of a folder by a \copy of its own, as a shell loop does it: copy-loop.sh PSQL URL TABLE FOLDER
set -eu
for file in "$4"/*; do
    "$1" -X -q -v ON_ERROR_STOP=1 -d "$2" -c "\\copy $3 from '$file' (format csv)"
done
