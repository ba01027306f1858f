# One line of progress for each step of a long command; sourced by tools/demo and tools/test.
# shellcheck shell=bash
#
# The caller sets `logs`, a directory for the output of the steps.
: "${logs:?}"

say_error() { echo "$(basename "$0"): $*" >&2; }

# step NAME TEXT COMMAND...: runs the command with its output in $logs/NAME.log and prints TEXT, the outcome and the time it took.
# Where it fails, what it says has failed follows, or else the end of its output. Returns the command's exit code.
step() {
  local name=$1 text=$2 code=0
  shift 2
  local began=$SECONDS
  printf '%-52s' "$text ..."
  "$@" >"$logs/$name.log" 2>&1 </dev/null || code=$?
  outcome "$name" "$code" $((SECONDS - began))
}

# beside NAME COMMAND...: begins a command that other steps run beside; `joined` is its step.
beside() {
  local name=$1 began=$SECONDS
  shift
  {
    local code=0
    "$@" >"$logs/$name.log" 2>&1 </dev/null || code=$?
    echo "$code $((SECONDS - began))" >"$logs/$name.end"
  } &
  echo $! >"$logs/$name.pid"
}

# joined NAME TEXT: waits for the end of what `beside` began; as `step` otherwise.
joined() {
  local name=$1 code=1 seconds=0
  printf '%-52s' "$2 ..."
  wait "$(cat "$logs/$name.pid")" || true # it leaves its exit code behind
  read -r code seconds <"$logs/$name.end" || true # it was killed: code 1
  outcome "$name" "$code" "$seconds"
}

# outcome NAME CODE SECONDS: the rest of a step's line. Returns CODE.
outcome() {
  local name=$1 code=$2
  if [ "$code" -eq 0 ]; then
    printf ' ok %5d s%s\n' "$3" "$(note "$name")"
  else
    printf ' FAILED %d s%s\n' "$3" "$(note "$name")"
    { grep -m 20 '^FAIL ' "$logs/$name.log" || tail -n 15 "$logs/$name.log"; } | sed 's/^/    /'
    echo "    (all of it: $logs/$name.log, exit code $code)"
  fi
  return "$code"
}

# What a step wants added to its line; it leaves that in $logs/NAME.note.
note() { if [ -e "$logs/$1.note" ]; then printf '   %s' "$(cat "$logs/$1.note")"; fi; }

# choose_kvm PROGRAM OTHERWISE: where guests run. Sets and exports VPMU_KVM to "host", or where this machine's KVM is not fit to OTHERWISE,
# "bed" or "none", and prints why.
choose_kvm() {
  local vpmu=$1 otherwise=$2 report unfit
  if [ -z "${VPMU_KVM:-}" ]; then
    if report=$("$vpmu" doctor --kvm 2>&1); then VPMU_KVM=host; else VPMU_KVM=$otherwise; fi
    printf '%s\n' "$report" >"$logs/doctor.log"
  fi
  export VPMU_KVM
  unfit=$(grep -m1 '^unfit' "$logs/doctor.log" 2>/dev/null || echo "see $vpmu doctor")
  case $VPMU_KVM in
    host) echo "guests run on this machine's /dev/kvm" ;;
    bed) echo "guests run in the bed, an emulated host with a real KVM; this machine's own: $unfit" ;;
    none) echo "guests run without KVM, on the instruction engine; this machine's own: $unfit" ;;
    *)
      say_error "VPMU_KVM is '$VPMU_KVM'; it may be host, bed or none"
      return 2
      ;;
  esac
}
