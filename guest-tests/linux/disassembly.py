"""What the guest's programs consist of, by objdump: where instructions begin, what they do to memory, which function they are in."""

import re
import subprocess
from dataclasses import dataclass, field

LINE = re.compile(r"^\s*([0-9a-f]+):\t([^\t]*?)\s*$")
LABEL = re.compile(r"^([0-9a-f]+) <([^>]+)>:$")
OBJECT = re.compile(r"^([0-9a-f]+) .{6}O \S+\t([0-9a-f]+) (\S+)$")
MEMORY = re.compile(r"(?:%[a-z]s:)?-?(?:0x)?[0-9a-f]*\([^)]*\)")
NO_ACCESS = ("lea", "nop", "prefetch", "endbr")
READS_ONLY = ("cmp", "test", "jmp", "call", "push")


@dataclass(eq=False)
class Program:
    instructions: dict = field(default_factory=dict)  # address -> text
    symbol_of: dict = field(default_factory=dict)  # address -> the label before it
    objects: dict = field(default_factory=dict)  # name -> (begin, end)

    def addresses_of(self, symbol):
        return [address for address, name in self.symbol_of.items() if name == symbol]


def parse(text):
    """Reads the output of `objdump -t -d --no-show-raw-insn`."""
    program = Program()
    symbol = ""
    for line in text.splitlines():
        if label := LABEL.match(line):
            symbol = label[2]
        elif match := OBJECT.match(line):
            begin = int(match[1], 16)
            program.objects[match[3]] = (begin, begin + int(match[2], 16))
        elif match := LINE.match(line):
            address = int(match[1], 16)
            program.instructions[address] = match[2]
            program.symbol_of[address] = symbol
    return program


def load(path):
    listing = subprocess.run(["objdump", "-t", "-d", "--no-show-raw-insn", path], check=True, capture_output=True, text=True).stdout
    program = parse(listing)
    if not program.instructions:
        raise ValueError(f"objdump finds no instruction in {path}")
    return program


def operands(text):
    """Mnemonic and operands of one instruction in AT&T syntax."""
    mnemonic, _, rest = text.partition(" ")
    rest = rest.split("#")[0].strip()
    return mnemonic, [part.strip() for part in re.split(r",(?![^(]*\))", rest)] if rest else []


def is_load(text):
    mnemonic, parts = operands(text)
    if mnemonic.startswith(NO_ACCESS) or not any(MEMORY.fullmatch(part.lstrip("*")) for part in parts):
        return False
    if mnemonic.startswith("mov"):
        return bool(MEMORY.fullmatch(parts[0]))
    return True


def is_store(text):
    mnemonic, parts = operands(text)
    if mnemonic.startswith(NO_ACCESS + READS_ONLY):
        return mnemonic.startswith(("push", "call"))
    return bool(parts) and bool(MEMORY.fullmatch(parts[-1]))
