#!/bin/sh
# Loads a file with --once and in another way in turns, each time into a new table like `model`, and
# reports how the two compare:
# turns.sh OTHER PGSLUICE PSQL URL CONNECTION CSV LANES PAIRS TABLE ROWS
# OTHER is `without`, for the same load without --once, or `timescaledb-parallel-copy`, which gets
# CONNECTION. Each pair reverses the order of the one before it. The last table stays.
#
# A checkpoint before each load lets all of them begin alike: with no dirty pages, and with WAL
# segments that can be used again.
#
# The figure is the mean of the pairs without the highest and the lowest fifth of them. Pairs differ by
# much more than what is asked, and for the same number of pairs this mean differs less from run to
# run than their median.
set -eu
other=$1 pgsluice=$2 psql=$3 url=$4 connection=$5 csv=$6 lanes=$7 pairs=$8 table=$9
shift 9
rows=$1 pair=0

sql() {
    "$psql" -X -q -A -t -v ON_ERROR_STOP=1 -d "$url" -c "$1"
}

run_once() {
    "$pgsluice" load "$csv" --to "$url" --table "$table" --method lanes --lanes "$lanes" --quiet --once >&2
}

run_other() {
    case $other in
    without)
        "$pgsluice" load "$csv" --to "$url" --table "$table" --method lanes --lanes "$lanes" --quiet >&2
        ;;
    timescaledb-parallel-copy)
        timescaledb-parallel-copy -connection "$connection" -table "$table" -file "$csv" -import-id "$pair" \
            -workers "$lanes" -copy-options CSV -reporting-period 0s >&2
        sql "ANALYZE $table"
        ;;
    esac
}

# Prints the seconds of one load.
seconds() {
    sql "DROP TABLE IF EXISTS $table"
    sql "CREATE TABLE $table (LIKE model)"
    sql CHECKPOINT
    began=$(date +%s.%N)
    "$1"
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

all=
while [ "$pair" -lt "$pairs" ]; do
    if [ $((pair % 2)) = 0 ]; then
        once=$(seconds run_once)
        others=$(seconds run_other)
    else
        others=$(seconds run_other)
        once=$(seconds run_once)
    fi
    all="$all $others/$once"
    pair=$((pair + 1))
done
echo "@@figure times_as_fast $(printf '%s\n' $all | awk -F/ '{ print $1 / $2 }' | middle)"
echo "@@note seconds $other / with --once:$all"
