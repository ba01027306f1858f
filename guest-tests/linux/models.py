"""What Linux and perf show of each CPU model: how the kernel names the PMU, and what perf can do with it."""

from dataclasses import dataclass, replace


BUS_CYCLES = "core: CPUID marked event: 'bus cycles' unavailable"
BRANCH_MISSES = "core: CPU erratum AAJ80 worked around"
SIBLINGS = "core: PMU erratum BJ122, BV98, HSD29 workaround disabled, HT off"

NO_PPP = "the processor has no precise distribution for it"
NO_STORES = "the processor has no precise event for stores"
NO_CALL_STACK = "the LBR does not follow calls before Haswell"
NO_FRONTEND = "there is no such event before Skylake"
NO_TRACE = "Linux takes no period of 1 on this processor"
UNKNOWN_MODEL = "Linux does not know this model"
MISSING = "missing: our PMU does not count or record it yet"
REASONS = (NO_PPP, NO_STORES, NO_CALL_STACK, NO_FRONTEND, NO_TRACE, UNKNOWN_MODEL, MISSING)

# Perf's words for the level of stores that hit, and missed, the L1; blanks as "_".
STORE_LEVELS = ("LVL_L1_hit", "LVL_L1_miss")


@dataclass(frozen=True)
class Kernel:
    """What perf shows otherwise on one version of Linux than on another."""

    level_alone: tuple = STORE_LEVELS  # of stores that tell the level alone


@dataclass(frozen=True)
class Model:
    """One CPU model as a guest with one CPU sees it."""

    driver: str  # how the kernel names the model
    pebs_format: int
    max_precise: int  # the most "p" that perf may ask for
    lbr_depth: int = 16
    full_width: bool = True  # counters take writes of all their bits
    counters: int = 4  # general-purpose ones of each thread
    counters_alone: int = 8  # and of a core's only thread
    version: int = 3
    remarks: tuple = ()  # what the kernel says of the PMU beyond that
    stores: str = ""  # precise stores tell the level and the "tlb", or only the "level"; empty: there is no such event
    store_levels: tuple = STORE_LEVELS
    store_uops: bool = False  # the event counts each store of a repeated string instruction
    load_tlb: bool = True  # a load's record tells of the TLB
    call_stack: bool = False  # the LBR can follow calls and returns
    frontend: bool = False
    branch_trace: bool = True  # Linux takes a period of 1, which asks for it
    uncore: tuple = ()  # the PMUs that the uncore's driver finds, by their names
    uncore_clock: str = ""  # the one of these that counts the uncore's clock
    uncore_rate: float = 1.0  # that clock's, as a multiple of the TSC's

    @property
    def pmu_line(self):
        words = [f"PEBS fmt{self.pebs_format}+", self.driver, f"{self.lbr_depth}-deep LBR" if self.lbr_depth else "",
                 "full-width counters" if self.full_width else "", "Intel PMU driver."]
        return "Performance Events: " + ", ".join(word for word in words if word)

    @property
    def pmu_lines(self):
        """All that the kernel says of the PMU, without time stamps."""
        largest = "00007fffffffffff" if self.full_width else "000000007fffffff"
        facts = (("version", self.version), ("bit width", 48), ("generic registers", self.counters), ("value mask", "0000ffffffffffff"),
                 ("max period", largest), ("fixed-purpose events", 3), ("event mask", f"00000007{2 ** self.counters - 1:08x}"))
        return [self.pmu_line, *self.remarks, *(f"... {name + ':':<24}{value}" for name, value in facts)]

    def lacks(self, facility):
        """Why there is no such facility, or None; facility_checks.py has their names."""
        why = {
            ":ppp": (self.max_precise < 3, NO_PPP),
            "mem stores": (not self.stores, NO_STORES),
            "call-graph lbr": (not self.call_stack, NO_CALL_STACK),
            "frontend": (not self.frontend, NO_FRONTEND),
            "BTS": (not self.branch_trace, NO_TRACE),
        }
        if self.max_precise == 0 and facility not in ("BTS", "PMIs"):
            return UNKNOWN_MODEL
        lacking, reason = why.get(facility, (False, ""))
        return reason if lacking else None


NEHALEM = Model("Nehalem events", 1, 2, counters_alone=4, full_width=False, remarks=(BRANCH_MISSES, BUS_CYCLES), load_tlb=False, branch_trace=False,
                uncore=("uncore",), uncore_clock="uncore", uncore_rate=0.8)
# Never sold: Linux knows neither its events nor its LBR.
HAVENDALE = replace(NEHALEM, driver="generic architected perfmon", max_precise=0, lbr_depth=0, branch_trace=True,
                    remarks=(BUS_CYCLES, "core: CPUID marked event: 'branch misses' unavailable"), uncore=())
WESTMERE = replace(NEHALEM, driver="Westmere events", remarks=(BUS_CYCLES,), load_tlb=True, branch_trace=True)
SANDY_BRIDGE = Model("SandyBridge events", 1, 2, remarks=(SIBLINGS,), stores="tlb", uncore=("uncore_arb", "uncore_cbox"), uncore_clock="uncore_cbox")
IVY_BRIDGE = replace(SANDY_BRIDGE, driver="IvyBridge events", max_precise=3)
HASWELL = replace(IVY_BRIDGE, driver="Haswell events", pebs_format=2, stores="level", store_uops=True, call_stack=True, branch_trace=False)
BROADWELL = replace(HASWELL, driver="Broadwell events", remarks=(), branch_trace=True)
SKYLAKE = replace(BROADWELL, driver="Skylake events", pebs_format=3, lbr_depth=32, version=4, store_uops=False, frontend=True)


def boxes(model, *names, clock="uncore_ubox"):
    """The same with the uncore of a server."""
    return replace(model, uncore=tuple(f"uncore_{name}" for name in names), uncore_clock=clock, uncore_rate=1.0)


def numbered(name, count):
    return [f"{name}_{number}" for number in range(count)]


EX_BOXES = (*numbered("bbox", 2), "cbox", *numbered("mbox", 2), *numbered("rbox", 2), *numbered("sbox", 2), "ubox", "wbox")
EP_BOXES = ("cbox", "pcu", "ubox")
SBOXES = numbered("sbox", 4)

MODELS = {
    "nehalem": NEHALEM,
    "nehalem-lynnfield": NEHALEM,
    "nehalem-havendale": HAVENDALE,
    "nehalem-ex": boxes(NEHALEM, *EX_BOXES, clock="uncore_wbox"),
    "westmere": WESTMERE,
    "westmere-ep": WESTMERE,
    "westmere-ex": boxes(WESTMERE, *EX_BOXES, clock="uncore_wbox"),
    "sandybridge": SANDY_BRIDGE,
    "sandybridge-ep": boxes(SANDY_BRIDGE, *EP_BOXES),
    "ivybridge": IVY_BRIDGE,
    "ivybridge-ep": boxes(IVY_BRIDGE, *EP_BOXES),
    "haswell": HASWELL,
    "haswell-ult": HASWELL,
    "haswell-gt3e": HASWELL,
    "haswell-ep": boxes(HASWELL, *EP_BOXES, *SBOXES),
    "broadwell": BROADWELL,
    "broadwell-h": BROADWELL,
    "broadwell-de": boxes(BROADWELL, *EP_BOXES),
    "broadwell-ep": boxes(BROADWELL, *EP_BOXES, *SBOXES),
    "skylake": SKYLAKE,
    "skylake-u": SKYLAKE,
    "skylake-sp": boxes(SKYLAKE, *numbered("iio", 6), *numbered("irp", 6), "pcu", "ubox"),
    "kabylake-u": SKYLAKE,
    "kabylake": SKYLAKE,
}


# Where a record leaves the number of a level open, as DataLA's records do, 6.12 tells perf so, and perf prints that beside the level.
KERNELS = {
    "6.1": Kernel(),
    "6.12": Kernel(level_alone=("LVL_L1_or_N/A_hit", "LVL_L1_or_N/A_miss")),
}


def kernel_of(run):
    """The version of Linux that ran."""
    release = run.first("kernel") or "that told its version"
    version = ".".join(release.split(".")[:2])
    assert version in KERNELS, f"no kernel {release}"
    return version


def model_of(run):
    """The model whose boot this is, as its kernel shows it."""
    name = run.first("model")
    assert name in MODELS, f"no model {name}"
    model, kernel = MODELS[name], KERNELS[kernel_of(run)]
    if run.first("threads") == "1":
        model = replace(model, counters=model.counters_alone)
    return replace(model, store_levels=kernel.level_alone) if model.stores == "level" else model
