#!/usr/bin/env python3
"""Writes the lists of instructions' micro-ops, ports and latency beside this script, of LLVM's scheduling models. Needs Debian's llvm-19.

    list_forms | tools/dev/timing/make_rows.py

README.md says what the columns mean. What LLVM does not know, or what measurements contradict, is in corrections.csv, which this script does not
write.
"""
import concurrent.futures
import csv
import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# List -> LLVM's name of the CPU.
MODELS = {"sandy_bridge": "sandybridge", "haswell": "haswell", "broadwell": "broadwell", "skylake": "skylake", "skylake_sp": "skylake-avx512"}
# Lists that hold only what differs from another list.
BASES = {"broadwell": "haswell", "skylake_sp": "skylake"}
FEATURES = "avx2,fma,bmi,bmi2,lzcnt,popcnt,aes,pclmul,f16c,movbe,rdrnd,rdseed,adx,xsave,xsaveopt,mmx,sse4.2,fsgsbase,rtm,prfchw,clflushopt"
# The sets of ports that one micro-op may be for; those of memory are told apart by number.
PORT_SETS = {"sandy_bridge": ("015", "01", "05", "15", "0", "1", "5"),
             "haswell": ("0156", "015", "01", "05", "06", "15", "16", "56", "0", "1", "5", "6")}
MAX_MICRO_OPS = 11  # of an instruction whose ports are told as sets; microcode's are told port by port
REGISTERS = {"8": "r8", "16": "r16", "32": "r32", "64": "r64", "128": "x", "256": "y"}


def disassemble(entry):
    """The assembly of one instruction, or None if LLVM has no single one for these bytes."""
    form, code = entry
    text = " ".join(f"0x{code[at:at + 2]}" for at in range(0, len(code), 2))
    run = subprocess.run(["llvm-mc-19", "--disassemble", "-triple=x86_64", "-mattr=+" + FEATURES.replace(",", ",+")], input=text,
                         capture_output=True, text=True, check=False)
    lines = [line.strip() for line in run.stdout.splitlines() if line.strip() and not line.strip().startswith(".")]
    return (form, lines[0]) if len(lines) == 1 and not run.stderr else None


def analyse(assembly, cpu):
    """Form -> (latency, {port: micro-ops}, the divider's cycles)."""
    text = "".join(f"# LLVM-MCA-BEGIN f{number}\n{line}\n# LLVM-MCA-END f{number}\n" for number, (_, line) in enumerate(assembly))
    run = subprocess.run(["llvm-mca-19", "-mtriple=x86_64", "-mcpu=" + cpu, "-instruction-tables", "-json", "-skip-unsupported-instructions=any"],
                         input=text, capture_output=True, text=True, check=False)
    found = json.loads(run.stdout)
    resources = found["TargetInfo"]["Resources"]
    rows = {}
    for region in found["CodeRegions"]:
        if not region.get("Instructions"):
            continue
        form, _ = assembly[int(region["Name"][1:])]
        ports, divider = {}, 0
        for usage in region["ResourcePressureView"]["ResourcePressureInfo"]:
            if usage["InstructionIndex"] != 0:
                continue
            resource = resources[usage["ResourceIndex"]]
            if "Divider" in resource:
                divider = round(usage["ResourceUsage"])
            else:
                name = re.search(r"Port(\w+)", resource)[1]
                ports[name] = ports.get(name, 0) + usage["ResourceUsage"]
        rows[form] = (region["InstructionInfoView"]["InstructionList"][0]["Latency"], ports, divider)
    return rows


def as_sets(sets, ports, memo):
    """How many micro-ops go to each set of ports, of how LLVM spreads them evenly; memory's ports are left out."""
    left = {port: usage for port, usage in ports.items() if port in "0156" and usage > 0.001}
    key = tuple(sorted((port, round(usage, 2)) for port, usage in left.items()))
    if key not in memo:
        if sum(left.values()) > MAX_MICRO_OPS:
            memo[key] = [(port, round(usage)) for port, usage in sorted(left.items()) if round(usage)]
        else:
            memo[key] = search([a_set for a_set in sets if set(a_set) <= set(left)], left)
    return memo[key]


def search(sets, left):
    """The first solution, with as many micro-ops as may be on the larger sets."""
    if all(usage < 0.02 for usage in left.values()):
        return []
    if not sets:
        return None
    first = sets[0]
    for count in range(int((min(left[port] for port in first) + 0.02) * len(first)), -1, -1):
        rest = search(sets[1:], {port: usage - (count / len(first) if port in first else 0) for port, usage in left.items()})
        if rest is not None:
            return [(first, count)] * (count > 0) + rest
    return None


def memory_free(form):
    """The forms with a register in the place of memory that may have the same micro-ops besides the load and the store."""
    bits = re.search(r"\bm(\d+)", form)
    if not bits:
        return []
    kinds = [REGISTERS.get(bits[1])]
    if re.search(r"\b[xy]\b", form):
        kinds = ["y" if bits[1] == "256" else "x", *kinds]
    if re.search(r"\bmm\b", form):
        kinds = ["mm", *kinds]
    return [re.sub(r"\bm\d+", kind, form, count=1) for kind in kinds if kind]


def micro_ops(sets):
    return "+".join((f"{count}*" if count > 1 else "") + "p" + ports for ports, count in sets) or "-"


def lines_of(name, rows):
    """Form -> (micro-ops, latency, divider), without forms with memory that follow from the ones with registers."""
    sets, memo = PORT_SETS["sandy_bridge" if name == "sandy_bridge" else "haswell"], {}
    told = {form: (micro_ops(as_sets(sets, ports, memo)), latency, divider) for form, (latency, ports, divider) in rows.items()
            if as_sets(sets, ports, memo) is not None}
    lines = {}
    for form, (ops, latency, divider) in told.items():
        _, ports, _ = rows[form]
        if any(port.startswith(("2", "3", "4", "7")) for port in ports):
            same = next((other for other in memory_free(form) if other in told), None)
            if same and told[same][0] == ops:
                continue
            latency = 0 if ops == "-" else told[same][1] if same else max(1, latency - 5)
        lines[form] = (ops, latency, divider)
    return lines


def write(name, lines):
    with open(HERE / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("form", "uops", "latency", "divider"))
        for form, row in sorted(lines.items()):
            out.writerow((form, *row))


def main():
    forms = [line.rstrip("\n").split("\t") for line in sys.stdin]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        assembly = [entry for entry in pool.map(disassemble, forms) if entry]
    lists = {name: lines_of(name, analyse(assembly, cpu)) for name, cpu in MODELS.items()}
    for name, lines in lists.items():
        base = lists.get(BASES.get(name), {})
        kept = {form: row for form, row in lines.items() if base.get(form) != row}
        write(name, kept)
        print(f"{name}.csv: {len(kept)} rows, of {len(assembly)} forms that LLVM knows and {len(forms)} in all")


if __name__ == "__main__":
    main()
