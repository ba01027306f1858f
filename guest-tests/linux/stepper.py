"""Simulates the guest's smallest programs from their disassembly: which instructions run in which order, and which branches."""

import functools
from dataclasses import dataclass, field

from disassembly import operands

# Registers by any of their names that the programs use.
NAMES = {"%ebx": "rbx", "%ecx": "rcx", "%r12d": "r12", "%r12b": "r12"}


@dataclass
class Steps:
    path: list = field(default_factory=list)  # the address of each instruction
    branches: list = field(default_factory=list)  # of each taken branch: its place in the path, from, to
    callers: list = field(default_factory=list)  # of each instruction: the addresses of the calls it is in, the innermost first


@functools.lru_cache
def run(program, start):
    """Until the program's first SYSCALL, which is the last of the path."""
    following = dict(zip(sorted(program.instructions), sorted(program.instructions)[1:]))
    steps, values, zero, stack, at = Steps(), dict.fromkeys(NAMES.values(), 0), False, (), start
    while True:
        mnemonic, parts = operands(program.instructions[at])
        steps.path.append(at)
        steps.callers.append(tuple(call for call, _ in reversed(stack)))
        to = following.get(at)
        if mnemonic == "syscall":
            return steps
        if mnemonic == "mov":
            if parts[1] in NAMES:
                values[NAMES[parts[1]]] = int(parts[0][1:], 16)
        elif mnemonic in ("inc", "dec"):
            name = NAMES[parts[0]]
            values[name] += 1 if mnemonic == "inc" else -1
            zero = values[name] == 0
        elif mnemonic == "test":
            zero = values[NAMES[parts[1]]] & int(parts[0][1:], 16) == 0
        elif mnemonic == "call":
            stack += ((at, to),)
            to = int(parts[0].split()[0], 16)
        elif mnemonic == "ret":
            to, stack = stack[-1][1], stack[:-1]
        elif mnemonic == "jmp" or (mnemonic in ("je", "jne") and zero == (mnemonic == "je")):
            to = int(parts[0].split()[0], 16)
        elif mnemonic not in ("je", "jne", "xor"):
            raise ValueError(f"no step for {program.instructions[at]}")
        if to != following.get(at):
            steps.branches.append((len(steps.path) - 1, at, to))
        at = to
