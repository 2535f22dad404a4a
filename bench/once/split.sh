#!/bin/sh
# Cuts a file without line ends in values into files of so many lines: split.sh FILE LINES FOLDER
set -eu
mkdir "$3"
split -a 6 -d -l "$2" "$1" "$3/"
