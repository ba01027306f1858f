"""which check of `vpmu test-kernel` finds a fault in a kernel's PMU driver

Faults of one line each are put into Debian's kernel 6.1, one at a time. The kernel is not built again: the bytes that the other line would give are put into its image, where its symbols say that the function or
table is. A fault whose bytes are not there, as in another build, is skipped.
"""

import dataclasses
import pathlib
import re
import struct
import subprocess

import pytest

import fetched as environment_of
from paths import KERNEL, PROGRAM

PACKAGES = ("lz4",)
pytestmark = [pytest.mark.full, pytest.mark.seconds(8)]

LZ4_MAGIC = bytes.fromhex("02214c18")  # of its old format; where a block should begin, Linux skips it
BLOCK_BYTES = 8 << 20
FUNCTION_BYTES = 4096


@dataclasses.dataclass
class Fault:
    """Bytes of a function or table of arch/x86/events, and others of the same length."""

    name: str
    symbol: str
    line: str  # what the source would say, and said
    old: str
    new: str
    found: str  # by these checks on skylake


def extra_register(event, register):
    return struct.pack("<IIQ", event, register, 0xFFFF).hex()


# Without a check that finds it: no program can see it. A fixed counter's bits are clear when it starts, and Linux itself leaves out the kernel's branches.
FAULTS = (
    Fault("period", "x86_perf_event_set_period", "core.c: (u64)(-left) is (u64)(~left)", "48f7da", "48f7d2",
          "precise.1 precise.2 precise.3 precise.batch mem.stores"),
    Fault("period-mask", "x86_perf_event_set_period", "core.c: no & x86_pmu.cntval_mask", "482315........89d648c1ea20", "0f1f8000000000........",
          "count.instructions count.branches count.privilege count.group sample.period sample.interrupts sample.callers precise.1 precise.2 precise.3 precise.batch "
          "lbr.branches lbr.stack mem.loads mem.stores cache.l1d cache.dtlb offcore frontend log.clean"),
    Fault("fixed-mask", "intel_pmu_enable_event", "intel/core.c, intel_pmu_enable_fixed(): mask = 0x0ULL << (idx * 4), was 0xf", "ba0f00000048d3e2", "ba00000000",
          ""),
    Fault("fixed-user", "intel_pmu_enable_event", "intel/core.c, intel_pmu_enable_fixed(): bits |= 0x1 for user mode, was 0x2", "4983c902", "4983c901",
          "count.instructions sample.period sample.interrupts sample.callers lbr.stack"),
    Fault("event-map", "intel_perfmon_event_map", "intel/core.c: branches are 0x00c5, was 0x00c4", "c400000000000000", "c500000000000000",
          "count.branches"),
    Fault("offcore-msr", "intel_skl_extra_regs", "intel/core.c: OFFCORE_RSP_0 is 0x1a7, was 0x1a6", extra_register(0x1B7, 0x1A6), extra_register(0x1B7, 0x1A7),
          "offcore"),
    Fault("frontend-msr", "intel_skl_extra_regs", "intel/core.c: the MSR of FRONTEND is 0x3f6, was 0x3f7", extra_register(0x1C6, 0x3F7), extra_register(0x1C6, 0x3F6),
          "frontend"),
    Fault("data-source", "pebs_data_source", "intel/ds.c: entry 1 says hit of the LFB, was of L1", "4201100002000000", "4202100018000000",
          "mem.loads"),
    Fault("load-latency-bit", "intel_pmu_pebs_enable", "intel/ds.c: 1ULL << (hwc->idx + 33), was 32", "8d5620480fabd0", "8d5621480fabd0",
          "mem.loads"),
    Fault("reset-index", "intel_pmu_pebs_enable", "intel/ds.c: pebs_event_reset[idx + 1], was idx", "4b8944ee40", "4b8944ee48",
          "precise.1 precise.2 precise.3 precise.batch lbr.branches mem.stores frontend"),
    Fault("no-fixup", "setup_pebs_fixed_sample_data", "intel/ds.c: precise_ip > 3 wants the right instruction, was > 1", "83e0033c010f86", "83e0033c030f86",
          "precise.2 precise.3 mem.loads mem.stores"),
    Fault("bts-bit", "intel_pmu_enable_bts", "intel/ds.c: no DEBUGCTLMSR_BTS", "480dc0010000......80cac0", "480d40010000......80ca40",
          "bts"),
    Fault("bts-kernel", "intel_pmu_enable_bts", "intel/ds.c: no DEBUGCTLMSR_BTS_OFF_OS", "80cc02", "80cc00",
          ""),
    Fault("lbr-mask", "intel_pmu_lbr_read_64", "intel/lbr.c: mask = x86_pmu.lbr_nr, was lbr_nr - 1", "83e801", "83e800",
          "lbr.branches lbr.stack log.clean"),
    Fault("lbr-count", "intel_pmu_lbr_read_64", "intel/lbr.c: i < num - 1, was i < num", "8d42ff", "8d42fe",
          "lbr.branches"),
    Fault("call-stack", "hsw_lbr_sel_map", "intel/lbr.c: PERF_SAMPLE_BRANCH_CALL_STACK without LBR_CALL_STACK", "38020000", "38000000",
          "lbr.stack"),
)


class Image:
    """A bzImage whose kernel is packed with LZ4, as Debian's 6.1 is."""

    def __init__(self, path):
        self.image = pathlib.Path(path).read_bytes()
        offset, self.length = struct.unpack_from("<II", self.image, 0x248)  # payload_offset, payload_length
        self.at = (self.image[0x1F1] + 1) * 512 + offset  # setup_sects
        packed = self.image[self.at : self.at + self.length - 4]
        assert packed[:4] == LZ4_MAGIC, f"{path} is not packed with LZ4"
        self.kernel = subprocess.run(["lz4", "-dc"], input=packed, capture_output=True, check=True).stdout

    def offset(self, address):
        """Where in the ELF file an address is."""
        start, = struct.unpack_from("<Q", self.kernel, 32)
        size, count = struct.unpack_from("<HH", self.kernel, 54)
        for number in range(count):
            kind, _, offset, begin, _, length = struct.unpack_from("<IIQQQQ", self.kernel, start + number * size)
            if kind == 1 and begin <= address < begin + length:
                return offset + address - begin
        raise AssertionError(f"{address:#x} is not in the kernel")

    def blocks(self):
        """Where the packed blocks are, each of BLOCK_BYTES when unpacked."""
        at, end = self.at + len(LZ4_MAGIC), self.at + self.length - 4
        while at < end:
            size, = struct.unpack_from("<I", self.image, at)
            yield at, 4 + size
            at += 4 + size

    def packed_again(self, kernel):
        """The same image with another kernel of the same size in it. Packed better than it was, it has room."""
        stream = bytearray(LZ4_MAGIC)
        for number, (at, size) in enumerate(self.blocks()):
            part = slice(number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES)
            if kernel[part] == self.kernel[part]:
                stream += self.image[at : at + size]
            else:
                stream += subprocess.run(["lz4", "-l", "-12", "-c"], input=kernel[part], capture_output=True, check=True).stdout[len(LZ4_MAGIC) :]
        room = self.length - 4 - len(stream)
        assert room >= 0, f"{-room} bytes too many"
        stream += LZ4_MAGIC * (room // 4)
        return self.image[: self.at] + stream + self.image[self.at + len(stream) :]


def places(data, pattern):
    """Where hexadecimal digits are, of which each ".." is any byte."""
    wanted = [None if pattern[i : i + 2] == ".." else int(pattern[i : i + 2], 16) for i in range(0, len(pattern), 2)]
    return [at for at in range(len(data) - len(wanted)) if all(one is None or data[at + i] == one for i, one in enumerate(wanted))]


def with_fault(image, fault, address):
    """The kernel with it, or why there is none."""
    begin = image.offset(address)
    found = places(image.kernel[begin : begin + FUNCTION_BYTES], fault.old)
    if not found:
        return None
    changed = bytearray(image.kernel)
    for i in range(0, len(fault.new), 2):
        if fault.new[i : i + 2] != "..":
            changed[begin + found[0] + i // 2] = int(fault.new[i : i + 2], 16)
    return bytes(changed)


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], env=environment_of.environment(), capture_output=True, text=True, check=False)


def run_test_kernel(kernel, model, *options):
    modules = next((KERNEL.resolve().parents[1] / "lib/modules").iterdir())
    return run("test-kernel", kernel, "--modules", modules, "--models", model, "--quiet", *options)


@dataclasses.dataclass
class Original:
    """The kernel without a fault, and what the checks say of it on a model."""

    model: str
    image: Image
    symbols: dict
    directory: pathlib.Path

    @property
    def report(self):
        return self.directory / "good.json"


@pytest.fixture(scope="module")
def original(request, fetched, program, tmp_path_factory):
    said = run("exec", "--accel", "soft", "--model", "skylake", "--kernel", KERNEL, "--append", "nokaslr", "--", "cat", "/proc/kallsyms").stdout
    made = Original(request.param, Image(KERNEL), {line.split()[2]: int(line.split()[0], 16) for line in said.splitlines()}, tmp_path_factory.mktemp("original"))
    ended = run_test_kernel(KERNEL, made.model, "--format", "json", "--output", made.report)
    assert ended.returncode == 0, f"the kernel fails without a fault: {ended.stdout} {ended.stderr}"
    return made


def find(fault, original, found):
    kernel = with_fault(original.image, fault, original.symbols[fault.symbol])
    if kernel is None:
        pytest.skip(f"{fault.name}: its bytes are not in this kernel")
    bad = original.directory / "bzImage"
    bad.write_bytes(original.image.packed_again(kernel))
    ended = run_test_kernel(bad, original.model, "--baseline", original.report)
    assert ended.returncode == (1 if found else 0), f"{fault.line}: code {ended.returncode}: {ended.stdout} {ended.stderr}"
    assert re.findall(rf"^{original.model} (\S+): pass, now fail: ", ended.stdout, re.M) == found.split(), f"{fault.line}: {ended.stdout}"
    assert f": {len(found.split())} changed\n" in ended.stdout, ended.stdout


@pytest.mark.parametrize("original", ["skylake"], indirect=True)
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_found(original, fault):
    find(fault, original, fault.found)


@pytest.mark.parametrize("original", ["nehalem", "haswell"], indirect=True)
def test_period_is_found_on_other_models(original):
    found = {"nehalem": "precise.1 precise.2 precise.batch", "haswell": "precise.1 precise.2 precise.3 precise.batch mem.stores"}
    find(FAULTS[0], original, found[original.model])
