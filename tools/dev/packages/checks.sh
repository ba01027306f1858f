# How the checks of the packages report; sourced by tools/dev/packages/check and check-in-chroot.
# shellcheck shell=bash
: "${logs:=}"

# check NAME COMMAND...: the check passes if the command does. Its output goes to LOGS/NAME.out; a failure shows the end of it.
check() {
  local name=$1 code out=$logs/$1.out
  shift
  # In a condition, or before `||`, the shell would ignore a command that fails within.
  set +e
  (set -e; "$@") >"$out" 2>&1 </dev/null
  code=$?
  set -e
  if [ "$code" -eq 0 ]; then
    echo "PASS $name"
  else
    echo "FAIL $name: exit code $code, $(tail -n 3 "$out" | paste -sd' ')"
  fi
}

# has TEXT FILE: whether the file contains the text; prints what it contains instead.
has() {
  if ! grep -qF -- "$1" "$2"; then
    echo "no '$1' in: $(head -c 2000 "$2")"
    return 1
  fi
}
