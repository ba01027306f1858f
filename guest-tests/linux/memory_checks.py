"""The judge's checks of sampled memory accesses."""

from collections import Counter
from dataclasses import dataclass

import disassembly
from models import model_of

MIN_MEMORY_SAMPLES = 50  # of loads, and of stores
MIN_OWN_SHARE = 0.50  # of mem-loads on loads, and of mem-stores on stores
MIN_LEVEL_SAMPLES = 15  # of programs/levels.S, at each level
# The model's word for a level -> perf's, blanks as "_".
LOAD_LEVELS = {
    "l1": "LVL_L1_or_L1_hit",
    "fill_buffer": "LVL_LFB/MAB_or_LFB/MAB_hit",
    "l2": "LVL_L2_or_L2_hit",
    "l3": "LVL_L3_or_L3_hit",
    "memory": "LVL_Local_RAM_or_RAM_hit",
}


@dataclass(frozen=True)
class Sample:
    """One record as perf shows it. A store has no latency, and says of its level only whether that was the L1 (rule S3)."""

    ip: int
    address: int
    latency: str
    operation: str
    level: str
    tlb: str


def check_memory(run, programs, event, does):
    """A record may stand for the load and the store event at once (rule P8), so its instruction may be either."""
    samples = [(int(ip, 16), int(address, 16)) for ip, address in run.named("mem", event)]
    assert len(samples) >= MIN_MEMORY_SAMPLES, f"{event}: {len(samples)} samples, needs {MIN_MEMORY_SAMPLES}"
    program = programs["arraywalk"]
    begin, end = program.objects["array"]
    for ip, address in samples:
        assert begin <= address < end, f"{event}: data address {address:#x} outside the array {begin:#x} to {end:#x}"
        text = program.instructions.get(ip)
        assert text, f"{event}: no instruction begins at {ip:#x}"
        assert disassembly.is_load(text) or disassembly.is_store(text), f"{event}: the instruction at {ip:#x} is: {text}"
    own = sum(1 for ip, _ in samples if does(program.instructions[ip]))
    assert own >= MIN_OWN_SHARE * len(samples), f"{event}: only {own} of {len(samples)} samples on an instruction of its kind"
    return f"{len(samples)} samples, {own} of its kind"


def samples_of(run):
    samples = []
    for line in run.facts["sampled"]:
        ip, address, latency, operation, level, tlb = line.split()
        samples.append(Sample(int(ip, 16), int(address, 16), latency, operation, level, tlb))
    return samples


def tlb_text(model, store, miss):
    """Perf's words for the TLB. Precise stores report its second level only, and the later kinds of stores none."""
    if not (model.stores == "tlb" if store else model.load_tlb):
        return "TLB_N/A"
    if miss:
        return "TLB_L2_miss"
    return "TLB_L2_hit" if store else "TLB_L1_or_L2_hit"


def modelled_sample(model, line):
    """What perf should show of what was logged: "0x401000 load 0x10000040 l2 latency 12 stlb_miss 0"."""
    ip, kind, address, level, _, latency, _, stlb_miss = line.split()
    place = int(ip, 16), int(address, 16)
    tlb = tlb_text(model, kind == "store", stlb_miss == "1")
    if kind == "store":
        return Sample(*place, "-", "OP_STORE", model.store_levels[level != "l1"], tlb)
    return Sample(*place, latency, "OP_LOAD", LOAD_LEVELS.get(level, level), tlb)


def check_as_modelled(run, programs):
    """What perf mem shows is what the model of the processor said of that very access: the records are a subsequence of its log."""
    samples = samples_of(run)
    modelled = iter([modelled_sample(model_of(run), line) for line in run.facts["modelled"]])
    begin, end = programs["levels"].objects["array"]
    assert len(samples) >= MIN_MEMORY_SAMPLES, f"{len(samples)} samples, needs {MIN_MEMORY_SAMPLES}"
    for number, sample in enumerate(samples, 1):
        assert begin <= sample.address < end, f"sample {number}: data address {sample.address:#x} outside the array"
        text = programs["levels"].instructions.get(sample.ip, "nothing")
        does = disassembly.is_load if sample.operation == "OP_LOAD" else disassembly.is_store
        assert does(text), f"sample {number} is a {sample.operation} at {sample.ip:#x}: {text}"
        assert sample in modelled, f"sample {number} is not in the model's log, or not in this order: {sample}"
    return f"{len(samples)} samples in a log of {len(run.facts['modelled'])}"


def check_every_level(run, _programs):
    model = model_of(run)
    found = Counter(sample.level for sample in samples_of(run))
    levels = [*LOAD_LEVELS.values(), *(model.store_levels if model.stores else ())]
    for level in levels:
        assert found[level] >= MIN_LEVEL_SAMPLES, f"{found[level]} samples of {level}, needs {MIN_LEVEL_SAMPLES}"
    assert set(found) == set(levels), f"other levels: {', '.join(found)}"
    misses = sum(sample.tlb == "TLB_L2_miss" for sample in samples_of(run))
    assert misses > 0 or not model.load_tlb, "no sample missed the TLB"
    return ", ".join(f"{count} {level}" for level, count in found.items()) + f", {misses} TLB_L2_miss"
