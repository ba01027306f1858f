# A program that is debugged while a counter counts it:
#   debugged MODE RIGHT COUNT      stops that were where they had to be; user instructions of it that were counted
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

for mode in "step 2000" "watch 100"; do
  # shellcheck disable=SC2086 # two words
  debugged $mode >/tmp/debugged 2>&1 || say error "debugged $mode: $(tr '\n' ' ' </tmp/debugged)"
  say_lines debugged </tmp/debugged
done
