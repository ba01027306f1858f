# How steps run commands that need KVM; sourced by tools/dev/test/step, at the root of the tree.
# shellcheck shell=bash

# Which runs on_kvm repeated, and why: the step's remark. Empty in most runs.
again=

# Whether the output has Linux's report of an interrupt that QEMU delivered twice (tools/dev/bed/README.md): at a handler's first instruction, RF set in the frame.
given_twice() { grep -A2 'RIP: 0010:asm_sysvec_[a-z_]*+0x0/' "$1" | grep -qm1 'EFLAGS: 0001....'; }

# on_kvm OUT ARGUMENT...: tools/dev/bed/on-kvm with its output in OUT; prints and returns an exit code other than 0. A run in which the bed itself broke
# down, or delivered an interrupt twice, says nothing about what is tested: it is repeated once, or up to three times. The outputs of such runs
# stay in OUT.1, OUT.2 and so on.
on_kvm() {
  local out=$1 code attempt most why
  shift
  for ((attempt = 1; ; ++attempt)); do
    code=0
    tools/dev/bed/on-kvm "$@" >"$out" 2>&1 || code=$?
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
