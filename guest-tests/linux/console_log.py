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
    boots: list = field(default_factory=list)  # of each boot in the log that ended: its console, line by line, and its last counters

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
    console, last = [], {}
    for line in text.splitlines():
        match = FACT.search(line)
        if not match or match[1] == "guest":
            console.append(line)
        if not match:
            run.kernel.append(line)
        elif match[2] == "dmesg":
            run.kernel.append(match[3])
        elif match[2] == "counters":
            where, _, document = match[3].partition(" ")
            run.counters[where] = last = sum_counters(json.loads(document))
        else:
            run.facts[match[2]].append(match[3].strip())
        if match and match[2] == "exit":
            run.boots.append((console, last))
            console, last = [], {}
    return run
