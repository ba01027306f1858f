# A debugger and its child, while a counter counts the child:
#   debugged step RIGHT COUNT      single-steps that ended where they had to; user instructions that were counted
#   debugged watch RIGHT COUNT     writes to a watched word that stopped the child; the same
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

for how in "step 2000" "watch 100"; do
  # shellcheck disable=SC2086 # two words
  debugged $how >/tmp/debugged 2>&1 || say error "debugged $how: $(tr '\n' ' ' </tmp/debugged)"
  say_lines debugged </tmp/debugged
done
