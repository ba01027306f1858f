#!/usr/bin/env python3
"""Checks that no op of the engine calls another one: each must jump to the next, or a long run would use up the host's stack.
The frequent ones call nothing at all.

    tail_calls.py LIBRARY
"""
import re
import subprocess
import sys

FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
CALL = re.compile(r"\tcall +(\*?)[^<]*(?:<(.*?)(\+0x[0-9a-f]+)?>)?$")
TARGET = re.compile(r"R_X86_64_(?:PLT32|PC32)\t(.*?)(?:[-+]0x[0-9a-f]+)?$")
OP = re.compile(r"^(?:void )?vpmu::exec::.*\(vpmu::exec::Op const\*, vpmu::exec::Core\*\)")
# One call in each that comes back: what asks the platform does so by a virtual function, and host ops run a routine.
COMES_BACK = re.compile(r"::(?:(?:rdmsr|wrmsr|rdpmc|rdtscp?|cpuid|read_control|write_cr8|switch_stack|client_request|swapgs)\(|host_op<)")
FREQUENT = re.compile(r"::(?:quick_\w+<|compare_and_jump<|jcc<|(?:call|ret|pop|push<.*>)\()")
# End the chain.
ENDS = ("vpmu::exec::leave(", "vpmu::exec::leave_for(", "vpmu::exec::end_at(")


def main():
    text = subprocess.run(["objdump", "-dr", "-C", "--no-show-raw-insn", sys.argv[1]], check=True, capture_output=True, text=True).stdout
    ops, bad, function, indirect, pending = 0, [], "", 0, False
    for line in text.splitlines():
        if found := FUNCTION.match(line):
            function, indirect, pending = found[1], 0, False
            ops += bool(OP.search(function))
        elif not OP.search(function):
            continue
        elif found := CALL.search(line):
            if FREQUENT.search(function):
                bad.append(f"{function} calls something")
            # A call within itself is one whose target the relocation on the next line tells.
            pending = not found[1] and bool(found[3])
            indirect += bool(found[1])
            if found[1] and indirect > bool(COMES_BACK.search(function)):
                bad.append(f"{function} calls through a pointer")
            if found[2] and not pending and OP.search(found[2]):
                bad.append(f"{function} calls {found[2]}")
        elif pending and (found := TARGET.search(line)):
            pending = False
            if OP.search(found[1]) and not found[1].startswith(ENDS):
                bad.append(f"{function} calls {found[1]}")
    for line in sorted(set(bad)):
        print(line)
    print(f"{ops} ops, {len(set(bad))} that do not end in a jump")
    sys.exit(bool(bad) or ops < 500)


main()
