#!/bin/sh
# The core alone by the program that measures it, and checks its answer itself: core.sh PGSLUICE votes|events
set -eu
"$(dirname "$1")/examples/throughput" "$2" 64 5 >measured
cat measured
# memcpy 9000 MB/s 1.0x …: the rate stands before "MB/s".
rate() { awk -v name="$1" 'index($0, "  " name " ") == 1 { for (i = 2; i <= NF; i++) if ($i == "MB/s") print $(i - 1) }' measured; }
core=$(rate 'to PGCOPY')
wc=$(rate 'wc -l')
echo "@@figure MB_per_second $core"
echo "@@figure memcpy_MB_per_second $(rate memcpy)"
echo "@@figure wc_MB_per_second $wc"
echo "@@figure share_of_wc $(awk -v a="$core" -v b="$wc" 'BEGIN { printf "%.3f", a / b }')"
