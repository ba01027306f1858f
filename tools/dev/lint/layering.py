#!/usr/bin/env python3
"""Checks that includes only point downwards: what each part of the tree may include, and that no two folders include each other.

    tools/dev/lint/layering.py [ROOT]
"""
import collections
import posixpath
import re

from source_tree import files, finish, root_from_arguments

INCLUDE = re.compile(r'^\s*#\s*include\s*(<[^>]+>|"[^"]+")')
STANDARD_HEADER = re.compile(r"<[a-z_0-9]+>")

# The core: standard headers without state, time, threads or input and output.
CORE_STANDARD = {
    "algorithm", "array", "bit", "cassert", "climits", "compare", "concepts", "cstddef", "cstdint", "cstring", "functional",
    "initializer_list", "iterator", "limits", "numeric", "optional", "ranges", "span", "string_view", "tuple", "type_traits",
    "utility", "variant",
}
# The freestanding part of the guest tests, and the headers that it shares with the core.
GUEST_SHARED = {"vpmu/bits.hpp", "vpmu/registers.hpp", "vpmu/x86.hpp", "vpmu/msr.hpp", "vpmu/pebs.hpp", "vpmu/bts.hpp", "vpmu/counter.hpp"}
# Headers that cost seconds to compile or leak their library's types: never in a header of ours.
THIRD_PARTY = re.compile(r"[<\"](boost/|asio|nlohmann/|CLI/|Zydis/|libvirt/|pugixml|elfutils/|fmt/chrono)")
# Headers of ours between such a library and the files that call it, which may include them.
FIREWALLS = {"virt/libvirt_calls.hpp": ("tools/vpmu/virt/libvirt", "tools/vpmu/virt/tests/libvirt_test.cpp"),
             "exec/decode/decoding.hpp": ("vpmu/exec/decode/",),
             "exec/decode/instruction.hpp": ("vpmu/exec/decode/", "vpmu/exec/tests/support/", "vpmu/timing/", "vmm/src/decode/"),
             "decode/zydis.hpp": ("vmm/src/decode/",)}
# The only places that talk to the kernel by ioctl: KVM's wrappers, the terminal, and perf events.
IOCTL_USERS = ("vmm/src/kvm/", "vmm/src/control/console.cpp", "vmm/src/perf/cpu_timer.cpp", "vmm/src/perf/linux_perf_host.cpp")

# The VMM's folders, from the lowest: each may include those before it.
VMM_FOLDERS = ("support", "kvm", "files", "memory", "snapshot", "boot", "devices", "decode", "vcpu", "model", "perf", "processor", "sources",
               "pmu", "soft", "passthrough", "virtio", "machine", "attach", "control", "jail")

# The engine's rooms, from the lowest: each may include those before it. What is outside of the engine includes engine.hpp, its door, and `state/`.
EXEC_ROOMS = ("state", "host", "memory", "observe", "interpret", "decode", "compile", "blocks")


def above(order, order_name, folder, included):
    if folder not in order:
        return f"name the place of {folder}/ in {order_name} of tools/dev/lint/layering.py"
    if included in order and order.index(included) > order.index(folder):
        return f"{folder}/ is below {included}/"
    return None


def core_violation(name, include):
    if include.startswith("<"):
        header = include[1:-1]
        return None if header in CORE_STANDARD else f"the core may not include {include}: only headers without state or I/O"
    top = include[1:-1].split("/")[0]
    local = "/" not in include or top in ("events", "generations")
    return None if top == "vpmu" or local else f"the core may not include {include}: it knows nothing above it"


def exec_violation(name, include):
    if name.startswith(("vpmu/exec/tests/", "vpmu/exec/bench/")):
        return None
    if include == "<Zydis/Zydis.h>":
        return None if name.startswith("vpmu/exec/decode/") else "in the engine only decode/ knows Zydis"
    if include.startswith("<"):
        allowed = CORE_STANDARD | {"atomic", "memory", "string", "unordered_map", "vector"}
        return None if include[1:-1] in allowed else f"the engine may not include {include}: it knows no operating system"
    top, *rest = include[1:-1].split("/")
    if top == "exec" and len(rest) == 2 and name.count("/") == 3:
        return above(EXEC_ROOMS, "EXEC_ROOMS", name.split("/")[2], rest[0])
    return None if top in ("vpmu", "exec") else f"the engine may not include {include}: it is above the core alone"


def uarch_violation(name, include):
    if name.startswith("vpmu/uarch/tests/"):
        return None
    if include.startswith("<"):
        return None if include[1:-1] in CORE_STANDARD | {"charconv", "string", "vector"} else f"the models may not include {include}: they are pure"
    return None if include[1:-1].split("/")[0] in ("vpmu", "uarch") else f"the models may not include {include}: they are above the core alone"


def timing_violation(name, include):
    if name.startswith("vpmu/timing/tests/"):
        return None
    if include.startswith("<"):
        allowed = CORE_STANDARD | {"emmintrin.h", "map", "memory", "string", "unordered_map", "vector"}
        return None if include[1:-1] in allowed else f"the timing model may not include {include}: it is pure"
    is_below = include[1:-1].split("/")[0] in ("vpmu", "timing", "timing_rows", "uarch") or include in ('"exec/decode/instruction.hpp"', '"exec/decode/macro_fusion.hpp"')
    return None if is_below else f"the timing model may not include {include}: it is above the core, the models of caches and branches, and the engine's decoder"


def guest_violation(name, include):
    header = include[1:-1]
    if header.startswith("vpmu/") and header not in GUEST_SHARED:
        return f"guest code may share {', '.join(sorted(GUEST_SHARED))} with the core, not {header}"
    if include.startswith("<") and not STANDARD_HEADER.fullmatch(include):
        return f"guest code is freestanding: no {include}"
    return None


def vmm_violation(name, include):
    header = include[1:-1]
    if header == "sys/ioctl.h" and not name.startswith(IOCTL_USERS):
        return "ioctl belongs to vmm/src/kvm: policy has none"
    wrong = above(VMM_FOLDERS, "VMM_FOLDERS", name.split("/")[2], header.split("/")[0])
    if wrong and "/" in header:
        return wrong
    if header.startswith("gt/") and header != "gt/protocol.hpp":
        return "the VMM knows of the guest tests only gt/protocol.hpp"
    return None


RULES = (
    ("vpmu/include/", core_violation),
    ("vpmu/src/", core_violation),
    ("vpmu/exec/", exec_violation),
    ("vpmu/uarch/", uarch_violation),
    ("vpmu/timing/", timing_violation),
    ("guest-tests/gt/", guest_violation),
    ("vmm/src/", vmm_violation),
)


def violations(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            include = match.group(1)
            for prefix, rule in RULES:
                why = rule(name, include) if name.startswith(prefix) else None
                if why:
                    yield f"{name}:{number}: {why}"
            if not name.startswith(FIREWALLS.get(include[1:-1], "")):
                yield f"{name}:{number}: {include} brings its library's types; only {' and '.join(FIREWALLS[include[1:-1]])} may include it"
            if name.endswith(".hpp") and THIRD_PARTY.match(include) and not name.endswith(tuple(FIREWALLS)):
                yield f"{name}:{number}: {include} belongs into one .cpp, behind a header of ours"
        elif name.startswith("vpmu/src/") and "/generations/" not in name and re.search(r"\bGeneration::[a-z]", line):
            yield f"{name}:{number}: a generation by name belongs into generations/; make the difference a field of GenerationDesc"


def by_path_ends(names):
    """Each suffix of a path ("c.hpp", "b/c.hpp", "a/b/c.hpp"), and the files whose paths end in it."""
    ends = collections.defaultdict(set)
    for name in names:
        parts = name.split("/")
        for start in range(len(parts)):
            ends["/".join(parts[start:])].add(name)
    return ends


def included_file(name, header, ends):
    """The file that `name` includes as "header": the one beside it, or the only one whose path ends so. None if it is ambiguous."""
    beside = posixpath.join(posixpath.dirname(name), header)
    found = ends.get(header, set())
    if beside in found:
        return beside
    return next(iter(found)) if len(found) == 1 else None


def folder_pairs(texts):
    """Folders that include each other: they should be one, or have files in the wrong place."""
    ends = by_path_ends(texts)
    between = {}
    for name, text in texts.items():
        for include in filter(None, map(INCLUDE.match, text.splitlines())):
            included = include.group(1).startswith('"') and included_file(name, include.group(1)[1:-1], ends)
            if included:
                between.setdefault((posixpath.dirname(name), posixpath.dirname(included)), f"{name} includes {included}")
    for (folder, other), why in sorted(between.items()):
        if folder < other and (other, folder) in between:
            yield f"{folder} and {other} include each other: {why}, {between[other, folder]}"


def main():
    root = root_from_arguments()
    sources = files(root, ".hpp", ".cpp", ".S")
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sources}
    findings = [finding for name, text in texts.items() for finding in violations(name, text)]
    findings += folder_pairs(texts)
    finish("layering", findings, len(sources), "Move the code down, or pass what it needs in from above.")


if __name__ == "__main__":
    main()
