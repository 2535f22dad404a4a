#!/bin/sh
# Loads a file without and with --once in turns, each time into a new table like `model`, and reports
# how the two compare: turns.sh PGSLUICE PSQL URL CSV LANES PAIRS TABLE ROWS
# Each pair reverses the order of the one before it. The last table stays.
#
# The figure is the mean of the pairs without the highest and the lowest fifth of them. Pairs differ by
# much more than what is asked, and for the same number of pairs this mean differs less from run to
# run than their median.
set -eu
pgsluice=$1 psql=$2 url=$3 csv=$4 lanes=$5 pairs=$6 table=$7 rows=$8

sql() {
    "$psql" -X -q -A -t -v ON_ERROR_STOP=1 -d "$url" -c "$1"
}

# Prints the seconds of one load.
load() {
    sql "DROP TABLE IF EXISTS $table; CREATE TABLE $table (LIKE model)"
    began=$(date +%s.%N)
    "$pgsluice" load "$csv" --to "$url" --table "$table" --method lanes --lanes "$lanes" --quiet "$@" >&2
    ended=$(date +%s.%N)
    [ "$(sql "SELECT count(*) FROM $table")" = "$rows" ]
    echo "$began $ended" | awk '{ printf "%.6f", $2 - $1 }'
}

middle() {
    sort -n | awk '
        { all[NR] = $1 }
        END {
            cut = int(NR / 5)
            for (i = cut + 1; i <= NR - cut; i++) sum += all[i]
            print sum / (NR - 2 * cut)
        }'
}

ratios=
pair=0
while [ "$pair" -lt "$pairs" ]; do
    if [ $((pair % 2)) = 0 ]; then
        with=$(load --once)
        without=$(load)
    else
        without=$(load)
        with=$(load --once)
    fi
    ratios="$ratios $(echo "$with $without" | awk '{ printf "%.4f", $2 / $1 }')"
    pair=$((pair + 1))
done
echo "@@figure times_as_fast $(printf '%s\n' $ratios | middle)"
echo "@@note --once, times as fast as without:$ratios"
