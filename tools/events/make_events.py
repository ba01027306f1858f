#!/usr/bin/env python3
"""Writes the event tables of the library (vpmu/src/events/NAME.hpp) from the event lists beside this script (NAME.csv).

    tools/events/make_events.py            writes the tables
    tools/events/make_events.py --check [ROOT]
                                           reports tables that differ from what the script makes of their lists

README.md says what the columns mean. Counters are `;`-separated PMC numbers, or fixedN. A list's name is that of its generation.
An event of a pair of codes (0xB7;0xBB with MSRs 0x1A6;0x1A7) is listed under the first one; where there are two, the second code gets one row.
"""
import csv
import fnmatch
import pathlib
import sys

HEADER = """\
#pragma once
// Written by tools/events/make_events.py from the list of this name beside it; change these, not this file.
// Event names and codes follow Intel's public perfmon event lists, which are Copyright (c) Intel Corporation,
// BSD-3-Clause.
#include <array>

#include "events/validate.hpp"
#include "vpmu/event.hpp"

namespace vpmu::events {{

// clang-format off
/// name, code, umask, cmask, inv, edge, any, counters, pebs, data_la, l1_hit_indication, msr_index, msr_value, sample_after, counts
inline constexpr std::array<EventDesc, {count}> {generation}{{{{
{rows}
}}}};
// clang-format on

static_assert(is_sorted_and_unique({generation}));
static_assert(has_possible_counters({generation}));
static_assert(has_pebs_on_pebs_counters({generation}));
static_assert(has_architectural_events({generation}));

}}  // namespace vpmu::events
"""

# What an event counts, by name. All rows of the same code and umask count the same thing (CMASK, INV, EDGE and ANY change how, not
# what: SDM 3B 18.2.1.1), so naming the plain form is enough.
COUNTS = {
    "cycles": ["CPU_CLK_UNHALTED.THREAD", "CPU_CLK_UNHALTED.THREAD_P"],
    "ref_cycles": ["CPU_CLK_UNHALTED.REF_TSC", "CPU_CLK_UNHALTED.REF"],
    # Without an SMT sibling, "this thread alone is active" is every unhalted crystal clock.
    "bus_cycles": ["CPU_CLK_UNHALTED.REF_XCLK", "CPU_CLK_UNHALTED.REF_P", "CPU_CLK_UNHALTED.ONE_THREAD_ACTIVE"],
    "instructions": ["INST_RETIRED.ANY", "INST_RETIRED.ANY_P", "INST_RETIRED.PREC_DIST", "INSTRUCTIONS_RETIRED"],
    "uops_retired": ["UOPS_RETIRED.RETIRE_SLOTS", "UOPS_RETIRED.ALL", "UOPS_RETIRED.ANY"],
    "uops_issued": ["UOPS_ISSUED.ANY", "UOPS_EXECUTED.THREAD", "UOPS_EXECUTED.CORE"],
    "branches": ["BR_INST_RETIRED.ALL_BRANCHES", "BR_INST_RETIRED.ALL_BRANCHES_PEBS", "BRANCH_INSTRUCTIONS_RETIRED"],
    # Where nothing is speculated, a branch executes exactly when it retires.
    "branches_taken": ["BR_INST_RETIRED.NEAR_TAKEN", "BR_INST_EXEC.TAKEN"],
    "branches_not_taken": ["BR_INST_RETIRED.NOT_TAKEN", "BR_INST_EXEC.NONTAKEN_CONDITIONAL"],
    "branches_conditional": ["BR_INST_RETIRED.CONDITIONAL", "BR_INST_EXEC.COND", "BR_INST_EXEC.ALL_CONDITIONAL"],
    "branches_call": ["BR_INST_RETIRED.NEAR_CALL", "BR_INST_EXEC.NEAR_CALLS"],
    "branches_return": ["BR_INST_RETIRED.NEAR_RETURN", "BR_INST_EXEC.RETURN_NEAR", "BR_INST_EXEC.TAKEN_INDIRECT_NEAR_RETURN",
                        "BR_INST_EXEC.ALL_INDIRECT_NEAR_RETURN"],
    "branches_far": ["BR_INST_RETIRED.FAR_BRANCH"],
    "branches_near": ["BR_INST_EXEC.ANY", "BR_INST_EXEC.ALL_BRANCHES"],
    "mispredicts": ["BR_MISP_RETIRED.ALL_BRANCHES", "BR_MISP_RETIRED.ALL_BRANCHES_PEBS", "BRANCH_MISSES_RETIRED",
                    "BR_MISP_EXEC.ALL_BRANCHES", "BR_MISP_EXEC.ANY"],
    "mispredicts_conditional": ["BR_MISP_RETIRED.CONDITIONAL", "BR_MISP_EXEC.COND", "BR_MISP_EXEC.ALL_CONDITIONAL"],
    "mispredicts_taken": ["BR_MISP_RETIRED.NEAR_TAKEN", "BR_MISP_RETIRED.TAKEN", "BR_MISP_EXEC.TAKEN"],
    "mispredicts_not_taken": ["BR_MISP_RETIRED.NOT_TAKEN", "BR_MISP_EXEC.NONTAKEN_CONDITIONAL"],
    "mispredicts_call": ["BR_MISP_RETIRED.NEAR_CALL", "BR_MISP_EXEC.NEAR_CALLS"],
    "mispredicts_return": ["BR_MISP_RETIRED.RET", "BR_MISP_EXEC.RETURN_NEAR", "BR_MISP_EXEC.TAKEN_RETURN_NEAR"],
    "loads": ["MEM_INST_RETIRED.ALL_LOADS", "MEM_INST_RETIRED.LOADS", "MEM_UOPS_RETIRED.ALL_LOADS"],
    "stores": ["MEM_INST_RETIRED.ALL_STORES", "MEM_INST_RETIRED.STORES", "MEM_UOPS_RETIRED.ALL_STORES",
               "MEM_TRANS_RETIRED.PRECISE_STORE"],
    "memory_instructions": ["MEM_INST_RETIRED.ANY"],
    "uncached_loads": ["MEM_UNCORE_RETIRED.UNCACHEABLE", "MEM_LOAD_MISC_RETIRED.UC"],
    "locked_loads": ["MEM_INST_RETIRED.LOCK_LOADS", "MEM_UOPS_RETIRED.LOCK_LOADS"],
    "split_loads": ["MEM_INST_RETIRED.SPLIT_LOADS", "MEM_UOPS_RETIRED.SPLIT_LOADS"],
    "split_stores": ["MEM_INST_RETIRED.SPLIT_STORES", "MEM_UOPS_RETIRED.SPLIT_STORES"],
    # Up to Westmere these are misses of the first level, whether the second one hits or not.
    "dtlb_miss_loads": ["MEM_LOAD_RETIRED.DTLB_MISS", "DTLB_LOAD_MISSES.ANY"],
    "dtlb_miss_stores": ["MEM_STORE_RETIRED.DTLB_MISS"],
    # Nothing runs on a wrong path: each access that causes a page walk retires, and each walk completes.
    "stlb_miss_loads": ["MEM_INST_RETIRED.STLB_MISS_LOADS", "MEM_UOPS_RETIRED.STLB_MISS_LOADS", "DTLB_LOAD_MISSES.MISS_CAUSES_A_WALK",
                        "DTLB_LOAD_MISSES.WALK_COMPLETED"],
    "stlb_miss_stores": ["MEM_INST_RETIRED.STLB_MISS_STORES", "MEM_UOPS_RETIRED.STLB_MISS_STORES", "DTLB_STORE_MISSES.MISS_CAUSES_A_WALK",
                         "DTLB_STORE_MISSES.WALK_COMPLETED"],
    "l1_hit": ["MEM_LOAD_RETIRED.L1_HIT", "MEM_LOAD_UOPS_RETIRED.L1_HIT", "MEM_LOAD_RETIRED.L1D_HIT"],
    "l1_miss": ["MEM_LOAD_RETIRED.L1_MISS", "MEM_LOAD_UOPS_RETIRED.L1_MISS"],
    "lfb_hit": ["MEM_LOAD_RETIRED.FB_HIT", "MEM_LOAD_UOPS_RETIRED.HIT_LFB", "MEM_LOAD_RETIRED.HIT_LFB"],
    "l2_hit": ["MEM_LOAD_RETIRED.L2_HIT", "MEM_LOAD_UOPS_RETIRED.L2_HIT"],
    "l2_miss": ["MEM_LOAD_RETIRED.L2_MISS", "MEM_LOAD_UOPS_RETIRED.L2_MISS"],
    "l3_hit": ["MEM_LOAD_RETIRED.L3_HIT", "MEM_LOAD_UOPS_RETIRED.L3_HIT", "MEM_LOAD_UOPS_RETIRED.LLC_HIT"],
    "l3_hit_unshared": ["MEM_LOAD_RETIRED.LLC_UNSHARED_HIT", "MEM_LOAD_UOPS_LLC_HIT_RETIRED.XSNP_NONE",
                        "MEM_LOAD_UOPS_L3_HIT_RETIRED.XSNP_NONE", "MEM_LOAD_L3_HIT_RETIRED.XSNP_NONE"],
    "l3_hit_shared": ["MEM_LOAD_UOPS_LLC_HIT_RETIRED.XSNP_HIT", "MEM_LOAD_UOPS_L3_HIT_RETIRED.XSNP_HIT", "MEM_LOAD_L3_HIT_RETIRED.XSNP_HIT"],
    "l3_hit_modified": ["MEM_LOAD_UOPS_LLC_HIT_RETIRED.XSNP_HITM", "MEM_LOAD_UOPS_L3_HIT_RETIRED.XSNP_HITM",
                        "MEM_LOAD_L3_HIT_RETIRED.XSNP_HITM", "MEM_UNCORE_RETIRED.OTHER_CORE_L2_HITM", "MEM_UNCORE_RETIRED.LOCAL_HITM"],
    "l3_hit_other_core": ["MEM_LOAD_RETIRED.OTHER_CORE_L2_HIT_HITM"],
    # There is one package: what misses its L3 comes from its memory.
    "l3_miss": ["MEM_LOAD_RETIRED.L3_MISS", "MEM_LOAD_UOPS_RETIRED.L3_MISS", "MEM_LOAD_UOPS_RETIRED.LLC_MISS",
                "MEM_LOAD_RETIRED.LLC_MISS", "MEM_LOAD_UOPS_MISC_RETIRED.LLC_MISS", "MEM_UNCORE_RETIRED.LOCAL_DRAM",
                "MEM_UNCORE_RETIRED.LOCAL_DRAM_AND_REMOTE_CACHE_HIT", "MEM_LOAD_UOPS_LLC_MISS_RETIRED.LOCAL_DRAM",
                "MEM_LOAD_UOPS_L3_MISS_RETIRED.LOCAL_DRAM", "MEM_LOAD_L3_MISS_RETIRED.LOCAL_DRAM"],
    "llc_references": ["LONGEST_LAT_CACHE.REFERENCE"],
    "llc_misses": ["LONGEST_LAT_CACHE.MISS"],
    "l1d_fills": ["L1D.REPLACEMENT", "L1D.REPL"],
    "l1i_misses": ["ICACHE.MISSES", "L1I.MISSES", "ICACHE_64B.IFTAG_MISS"],
    "itlb_stlb_hits": ["ITLB_MISSES.STLB_HIT"],
    "itlb_walks": ["ITLB_MISSES.MISS_CAUSES_A_WALK", "ITLB_MISSES.WALK_COMPLETED"],
    "itlb_misses": ["ITLB_MISS_RETIRED"],
    "nops": ["INST_RETIRED.NOP"],
    "x87_operations": ["INST_RETIRED.X87"],
    "mmx": ["INST_RETIRED.MMX"],
    "sse_packed_single": ["SSEX_UOPS_RETIRED.PACKED_SINGLE"],
    "sse_scalar_single": ["SSEX_UOPS_RETIRED.SCALAR_SINGLE"],
    "sse_packed_double": ["SSEX_UOPS_RETIRED.PACKED_DOUBLE"],
    "sse_scalar_double": ["SSEX_UOPS_RETIRED.SCALAR_DOUBLE"],
    "sse_integer": ["SSEX_UOPS_RETIRED.VECTOR_INTEGER"],
    "macro_fused": ["UOPS_RETIRED.MACRO_FUSED"],
    "never": ["MEM_UNCORE_RETIRED.REMOTE_CACHE_LOCAL_HOME_HIT", "MEM_UNCORE_RETIRED.REMOTE_DRAM", "MEM_UNCORE_RETIRED.REMOTE_HITM"],
    "load_latency": ["MEM_TRANS_RETIRED.LOAD_LATENCY_GT_4", "MEM_INST_RETIRED.LATENCY_ABOVE_THRESHOLD_0"],
    "frontend": ["FRONTEND_RETIRED.DSB_MISS"],
}

# Families that count what cannot happen: no model reports TSX, and each has one package.
NEVER = ("HLE_RETIRED.", "RTM_RETIRED.", "TX_MEM.", "MEM_LOAD_UOPS_LLC_MISS_RETIRED.REMOTE_", "MEM_LOAD_UOPS_L3_MISS_RETIRED.REMOTE_",
         "MEM_LOAD_L3_MISS_RETIRED.REMOTE_")

# The architectural events (SDM 3B table 18-1); a list that lacks one gets a row.
ARCHITECTURAL = {
    (0x3C, 0x00): "UNHALTED_CORE_CYCLES", (0xC0, 0x00): "INSTRUCTIONS_RETIRED", (0x3C, 0x01): "UNHALTED_REFERENCE_CYCLES",
    (0x2E, 0x4F): "LLC_REFERENCES", (0x2E, 0x41): "LLC_MISSES", (0xC4, 0x00): "BRANCH_INSTRUCTIONS_RETIRED",
    (0xC5, 0x00): "BRANCH_MISSES_RETIRED",
}

# Rows that Intel's lists call not precise, and libpfm4's tables or Linux call precise: those may be precise here, as a record that nobody
# expects harms less than one that never comes. Precise cycles is INST_RETIRED.ANY_P with INV=1 and CMASK=16 (rule P18); `perf record -e
# branches:pp` takes C4H/00H. By the generations' names, which may end in "*".
DISPUTED = {
    "*": {(0xC0, 0x00), (0xC4, 0x00), (0xC4, 0x10), (0xC4, 0x40), (0xC5, 0x00)},
    "sandy_bridge_ep": {(0xD1, 0x04), (0xD1, 0x20), (0xD2, 0x01), (0xD2, 0x02), (0xD2, 0x04), (0xD2, 0x08), (0xD3, 0x01), (0xD3, 0x04)},
    "ivy_bridge": {(0xD3, 0x01)},
    "ivy_bridge_ep": {(0xD3, 0x03), (0xD3, 0x0C), (0xD3, 0x10), (0xD3, 0x20)},
    "haswell*": {(0xC0, 0x02)},
    "skylake*": {(0xC2, 0x02)},
}
# Events that Intel's list of a generation leaves out, and libpfm4 has, where another generation's list has them and a source can count them:
# name, code, umask, and the row that it is like.
ALSO_THERE = {
    "sandy_bridge_ep": [("MEM_LOAD_UOPS_MISC_RETIRED.LLC_MISS", 0xD4, 0x02, "MEM_LOAD_UOPS_RETIRED.LLC_MISS")],
    "skylake": [("BR_MISP_RETIRED.RET", 0xC5, 0x08, "BR_MISP_RETIRED.NEAR_CALL"),
                ("MEM_LOAD_L3_MISS_RETIRED.LOCAL_DRAM", 0xD3, 0x01, "MEM_LOAD_RETIRED.L3_MISS")],
    "skylake*": [("UOPS_RETIRED.ALL", 0xC2, 0x01, "UOPS_RETIRED.RETIRE_SLOTS")],
}

PEBS = ["no", "yes", "only", "disputed"]
NO, DISPUTED_PEBS = 0, 3

# Event lists that have data addresses leave out one that the manual names. SDM 3B table 18-46.
ALSO_WITH_ADDRESS = ["UOPS_RETIRED.ALL"]


def number(text):
    """The number in a cell, or the first of a pair of alternatives."""
    return int(text.split(";")[0], 0)


def counter_mask(text):
    """Bit i for PMCi, bit 8+n for fixed counter n."""
    return sum(1 << (8 + int(c[5:]) if c.startswith("fixed") else int(c)) for c in text.split(";"))


def parse(row):
    """One list line as a row without its `counts`."""
    event = {key: number(row[key]) for key in
             ("umask", "cmask", "inv", "edge", "any", "pebs", "data_la", "l1_hit_indication", "msr_index", "msr_value")}
    event["name"] = row["name"]
    event["code"] = number(row["event_code"])
    event["sample_after"] = number(row["sample_after_value"])
    event["counters"] = counter_mask(row["counters_ht_off"])
    return event


def of_generation(table, generation):
    """The entries of a table that mean this generation."""
    return [entry for pattern, entries in table.items() if fnmatch.fnmatchcase(generation, pattern) for entry in entries]


def also_there(events, generation):
    """Rows for the events that the list leaves out."""
    by_name = {event["name"]: event for event in events}
    return [{**by_name[like], "name": name, "code": code, "umask": umask, "pebs": DISPUTED_PEBS}
            for name, code, umask, like in of_generation(ALSO_THERE, generation)]


def select(event):
    """What PERFEVTSEL[15:0] holds; for a fixed counter's row, whose code is a placeholder, the counter."""
    return (0, event["counters"]) if event["code"] == 0 else (event["code"], event["umask"])


def key(event):
    """The order of the table."""
    return tuple(event[k] for k in ("code", "umask", "cmask", "inv", "edge", "any", "msr_value", "name"))


def second_offcore_code(lines, generation):
    """One row for the second code of an off-core pair, which all but Nehalem have; the values of its MSR are those of the first."""
    pairs = [line for line in lines if line["event_code"].startswith("0xB7")]
    if not pairs or generation.startswith("nehalem"):
        return []
    return [parse({**pairs[0], "name": "OFFCORE_RESPONSE_1", "event_code": "0xBB", "msr_index": "0", "msr_value": "0"})]


def missing_architectural(events):
    """Rows for the architectural events that the list does not have."""
    present = {select(event) for event in events}
    pattern = next(event for event in events if event["name"] == "CPU_CLK_UNHALTED.THREAD_P")
    return [{**pattern, "name": name, "code": code, "umask": umask}
            for (code, umask), name in ARCHITECTURAL.items() if (code, umask) not in present]


def counts_by_select(events):
    """What each (code, umask) counts; refuses a table in which two rows disagree."""
    by_name = {name: counts for counts, names in COUNTS.items() for name in names}
    result = {}
    for event in events:
        counts = "never" if event["name"].startswith(NEVER) else by_name.get(event["name"])
        if counts and result.setdefault(select(event), counts) != counts:
            sys.exit(f"make_events: {event['name']} is {counts}, another row of its code and umask is {result[select(event)]}")
    result[(0xB7, 0x01)], result[(0xBB, 0x01)] = "offcore", "offcore_1"
    return result


def format_row(event, counts):
    """One row of the C++ table."""
    flags = {k: "true" if event[k] else "false" for k in ("inv", "edge", "any", "data_la", "l1_hit_indication")}
    return (f'  {{"{event["name"]}", 0x{event["code"]:02X}, 0x{event["umask"]:02X}, {event["cmask"]}, {flags["inv"]}, {flags["edge"]}, '
            f'{flags["any"]}, 0x{event["counters"]:X}, PebsAbility::{PEBS[event["pebs"]]}, {flags["data_la"]}, '
            f'{flags["l1_hit_indication"]}, 0x{event["msr_index"]:X}, 0x{event["msr_value"]:X}, {event["sample_after"]}, '
            f'Counts::{counts}}},')


def table(path):
    """The C++ table of one list."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    events = [parse(line) for line in lines] + second_offcore_code(lines, path.stem)
    events += missing_architectural(events)
    names = [event["name"] for event in events]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        sys.exit(f"make_events: {path}: repeated names: {', '.join(sorted(repeated))}")
    if any(event["data_la"] for event in events):
        for event in events:
            event["data_la"] |= event["name"] in ALSO_WITH_ADDRESS
    events += also_there(events, path.stem)
    events.sort(key=key)
    disputed = set(of_generation(DISPUTED, path.stem))
    for event in events:
        if event["pebs"] == NO and select(event) in disputed:
            event["pebs"] = DISPUTED_PEBS
    counts = counts_by_select(events)
    rows = [format_row(event, counts.get(select(event), "unmodelled")) for event in events]
    return HEADER.format(count=len(rows), generation=path.stem, rows="\n".join(rows))


def tables(root):
    """Each table's path, and what is to be in it."""
    for path in sorted((root / "tools/events").glob("*.csv")):
        yield root / f"vpmu/src/events/{path.stem}.hpp", table(path)


def check(root):
    """Fails if a table is not what its list makes, or has no list."""
    made = dict(tables(root))
    wrong = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    wrong += [path for path in (root / "vpmu/src/events").glob("*.hpp") if path not in made and path.name != "validate.hpp"]
    for path in sorted(wrong):
        print(f"{path.relative_to(root)}: not what tools/events/make_events.py makes of its list")
    if not made:
        sys.exit(f"make_events: no lists in {root}/tools/events")
    print(f"events: {len(made)} tables, {f'{len(wrong)} found. Change the list or the script, and run tools/events/make_events.py' if wrong else 'nothing found'}")
    return 1 if wrong else 0


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    if sys.argv[1:2] == ["--check"] and len(sys.argv) <= 3:
        return check(pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else root)
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    for path, text in tables(root):
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
