# How steps run what needs a KVM; sourced by tools/steps/step, at the root of the tree.
# shellcheck shell=bash

# What on_kvm ran again, and why: a step's remark. It stays empty in most runs.
again=

# How Linux tells of an interrupt that QEMU gave it twice (tools/bed/README.md): one at a handler's first instruction, with RF set in the frame.
given_twice() { grep -A2 'RIP: 0010:asm_sysvec_[a-z_]*+0x0/' "$1" | grep -qm1 'EFLAGS: 0001....'; }

# on_kvm OUT ARGUMENT...: tools/bed/on-kvm with its output in OUT; an exit code other than 0 is said and returned. Where the bed itself broke down, or
# gave a guest an interrupt twice, the run tells nothing of what is tested: it is done once more, or up to three times more. Outputs of such runs
# stay in OUT.1, OUT.2 and so on.
on_kvm() {
  local out=$1 code attempt most why
  shift
  for ((attempt = 1; ; ++attempt)); do
    code=0
    tools/bed/on-kvm "$@" >"$out" 2>&1 || code=$?
    if [ "$code" -eq 125 ]; then
      most=2 why=$(grep -om1 'bed: .*' "$out" || true)
    elif given_twice "$out"; then
      most=4 why="an interrupt that QEMU gave twice"
    else
      break
    fi
    if [ "$attempt" -ge "$most" ]; then break; fi
    cp "$out" "$out.$attempt"
    again+="${again:+; }again, after $why, see $out.$attempt"
  done
  if [ "$code" -ne 0 ]; then echo "exit code $code"; fi
  return "$code"
}
