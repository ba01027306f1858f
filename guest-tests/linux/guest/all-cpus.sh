# Precise sampling of every CPU; record_run.sh tells what it prints.
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh
. /guest/record_run.sh

run all-cpus split 1600 -- -a -e cycles:pp -F 1000
