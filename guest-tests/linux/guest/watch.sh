# A program with a watchpoint while a counter counts it; as debug.sh, with "watch" for "step".
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

debugged watch 100 >/tmp/debugged 2>&1 || say error "debugged watch: $(tr '\n' ' ' </tmp/debugged)"
say_lines debugged </tmp/debugged
