"""Reads what boot-guest printed: the guest's own lines, the host's counters, and everything the kernel said."""

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field

FACT = re.compile(r"vpmu-(guest|host): ([a-z-]+) ?(.*)")


@dataclass
class Run:
    """One boot of the guest."""

    facts: dict = field(default_factory=lambda: defaultdict(list))  # word -> the rests of its lines
    counters: dict = field(default_factory=dict)  # where -> counter name -> sum over the vCPUs
    kernel: list = field(default_factory=list)  # dmesg lines and everything else on the console

    def first(self, word):
        return self.facts[word][0] if self.facts[word] else None

    def named(self, word, name):
        """The rests of the lines "word name rest", split into words."""
        return [line.split()[1:] for line in self.facts[word] if line.split()[:1] == [name]]


def sum_counters(document):
    total = defaultdict(int)
    for vcpu in document["vcpus"]:
        for name, value in vcpu.items():
            total[name] += value
    return total


def parse(text):
    run = Run()
    for line in text.splitlines():
        match = FACT.search(line)
        if not match:
            run.kernel.append(line)
        elif match[2] == "dmesg":
            run.kernel.append(match[3])
        elif match[2] == "counters":
            where, _, document = match[3].partition(" ")
            run.counters[where] = sum_counters(json.loads(document))
        else:
            run.facts[match[2]].append(match[3].strip())
    return run
