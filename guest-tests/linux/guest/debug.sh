# A program that is single-stepped while a counter counts it:
#   debugged step RIGHT COUNT      stops that were where they had to be; user instructions of it that were counted
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

debugged step 2000 >/tmp/debugged 2>&1 || say error "debugged step: $(tr '\n' ' ' </tmp/debugged)"
say_lines debugged </tmp/debugged
