"""Shell commands on one emulated host, one after the other in one shell: what each said, and how it ended."""

import re

import bed


class Said:
    def __init__(self, text, code, path):
        self.text, self.code, self.path = text, code, path

    def __str__(self):
        return f"exit code {self.code}: {self.text[-2000:]}\n(in {self.path})"


class Host:
    """Of each command, by its name, what it said."""

    def __init__(self, ended):
        found = re.findall(r"^== (\S+)\n(.*?)\n== ended (\d+)$", ended.text, re.M | re.S)
        self.ended, self.said = ended, {name: Said(text, int(code), ended.path) for name, text, code in found}

    def __getitem__(self, name):
        assert name in self.said, f"{name} has not ended: {self.ended}"
        return self.said[name]


def run_on_intel(out, commands, **options):
    """Runs the commands, of which each has a name."""
    script = "".join(f"echo '== {name}'\n{{ {command}\n}} 2>&1\nprintf '\\n== ended %d\\n' $?\n" for name, command in commands.items())
    return Host(bed.on_intel(out, ["sh", "-c", script], **options))
