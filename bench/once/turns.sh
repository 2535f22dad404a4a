#!/bin/sh
# Loads a file with --once and in another way in turns, each time into a new table like `model`, and
# reports how the two compare:
# turns.sh PGSLUICE PSQL URL CSV LANES PAIRS TABLE ROWS [CONNECTION [MIB]]
# The other way is the same load without --once; with CONNECTION it is timescaledb-parallel-copy, over
# that connection. With MIB, both commit after so many mebibytes: otherwise pgsluice commits at the end, and
# timescaledb-parallel-copy after 5,000 rows, its default. Each pair reverses the order of the one before
# it. The last table stays.
#
# A checkpoint before each load lets all of them begin alike: with no dirty pages, and with WAL
# segments that can be used again.
#
# The figure is the mean of the pairs without the highest and the lowest fifth of them. Pairs differ by
# much more than what is asked, and for the same number of pairs this mean differs less from run to
# run than their median.
set -eu
pgsluice=$1 psql=$2 url=$3 csv=$4 lanes=$5 pairs=$6 table=$7 rows=$8 connection=${9:-} mib=${10:-}

sql() {
    "$psql" -X -q -A -t -v ON_ERROR_STOP=1 -d "$url" -c "$1"
}

load() {
    "$pgsluice" load "$csv" --to "$url" --table "$table" --method lanes --lanes "$lanes" --quiet "$@" >&2
}

timescaledb_parallel_copy() {
    timescaledb-parallel-copy -connection "$connection" -table "$table" -file "$csv" -import-id "$pair" \
        -workers "$lanes" -copy-options CSV -reporting-period 0s \
        ${mib:+-batch-size 100000000 -batch-byte-size $((mib * 1048576))} >&2
    sql "ANALYZE $table"
}

# Prints the seconds of one load, which the arguments run.
seconds() {
    sql "DROP TABLE IF EXISTS $table"
    sql "CREATE TABLE $table (LIKE model)"
    sql CHECKPOINT
    began=$(date +%s.%N)
    "$@"
    ended=$(date +%s.%N)
    [ "$(sql "SELECT count(*) FROM $table")" = "$rows" ]
    echo "$began $ended" | awk '{ printf "%.3f", $2 - $1 }'
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

other=load name=pgsluice
if [ -n "$connection" ]; then
    other=timescaledb_parallel_copy name=timescaledb-parallel-copy
fi
all= pair=0
while [ "$pair" -lt "$pairs" ]; do
    if [ $((pair % 2)) = 0 ]; then
        once=$(seconds load --once ${mib:+--commit-every ${mib}MB})
        others=$(seconds "$other")
    else
        others=$(seconds "$other")
        once=$(seconds load --once ${mib:+--commit-every ${mib}MB})
    fi
    all="$all $others/$once"
    pair=$((pair + 1))
done
echo "@@figure times_as_fast $(printf '%s\n' $all | awk -F/ '{ print $1 / $2 }' | middle)"
echo "@@note seconds of $name / of pgsluice --once:$all"
