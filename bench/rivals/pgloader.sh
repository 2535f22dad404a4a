#!/bin/sh
# usage: pgloader.sh TABLE CSV USER@HOST:PORT/DATABASE SCRATCH
# Loads by pgloader with a command file as its documentation writes them for CSV. Batches,
# workers and concurrency stay at its own defaults for files: it recommends no others.
# Its exit code is 0 even when rows were rejected: the count and checksum afterwards tell.
set -eu
table=$1 csv=$2 target=$3 scratch=$4
columns=$(PYTHONPATH=$(dirname "$0") python3 -c "import sys, tables; print(', '.join(tables.names(sys.argv[1])))" "$table")
cat >"$scratch/load.pgloader" <<END
LOAD CSV
     FROM '$csv' ($columns)
     INTO postgresql://$target
     TARGET TABLE $table ($columns)
     WITH fields optionally enclosed by '"',
          fields escaped by double-quote,
          fields terminated by ',',
          keep unquoted blanks
     SET work_mem to '32MB', standard_conforming_strings to 'on';
END
exec pgloader --quiet --root-dir "$scratch/pgloader" "$scratch/load.pgloader"
