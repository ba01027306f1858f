"""What Bochs needs to start Linux without a boot loader: images that it puts into memory, and a floppy whose boot sector enters the kernel."""

import pathlib
import struct
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
TABLES = 112 * MIB  # between the kernel and the initial ram disk
GDT, PAGE_TABLES, ZERO_PAGE, COMMAND_LINE, TABLES_BYTES = TABLES, TABLES + 0x1000, TABLES + 0x8000, TABLES + 0x9000, 0x10000
INITRD = 128 * MIB
FLOPPY_BYTES = 1440 << 10
E820_RAM, E820_RESERVED, E820_ACPI = 1, 2, 3


def load_segments(vmlinux):
    """Returns the kernel's image in memory, the physical address where that begins, and the kernel's entry point."""
    elf = vmlinux.read_bytes()
    entry, headers = struct.unpack_from("<QQ", elf, 24)
    size, count = struct.unpack_from("<HH", elf, 54)
    loads = [header for n in range(count) if (header := struct.unpack_from("<IIQQQQQQ", elf, headers + n * size))[0] == 1]
    base = min(header[4] for header in loads)
    flat = bytearray(max(header[4] + header[5] for header in loads) - base)
    for _, _, offset, _, at, in_file, _, _ in loads:
        flat[at - base:at - base + in_file] = elf[offset:offset + in_file]
    return bytes(flat), base, entry


def zero_page(memory, initrd_bytes):
    """struct boot_params: the memory map, the initial ram disk and the command line."""
    page = bytearray(4096)
    top = memory - MIB  # the firmware has its ACPI tables there
    areas = [(0, 0x9F000, E820_RAM), (0xF0000, 0x10000, E820_RESERVED), (MIB, top - MIB, E820_RAM), (top, MIB, E820_ACPI)]
    page[0x1E8] = len(areas)
    for n, area in enumerate(areas):
        struct.pack_into("<QQI", page, 0x2D0 + 20 * n, *area)
    struct.pack_into("<H", page, 0x1FE, 0xAA55)
    page[0x202:0x206] = b"HdrS"
    struct.pack_into("<HBB", page, 0x206, 0x20F, 0, 0)
    page[0x210], page[0x211] = 0xFF, 1  # type_of_loader: unknown; loadflags: LOADED_HIGH
    struct.pack_into("<II", page, 0x218, INITRD, initrd_bytes)
    struct.pack_into("<II", page, 0x228, COMMAND_LINE, 2047)
    return page


def tables(memory, initrd_bytes, command_line):
    """The GDT, page tables that identity-map the first 4 GiB, the zero page and the command line."""
    out = bytearray(TABLES_BYTES)

    def put(at, data):
        out[at - TABLES:at - TABLES + len(data)] = data

    put(GDT, struct.pack("<4Q", 0, 0x00CF9B000000FFFF, 0x00AF9B000000FFFF, 0x00CF93000000FFFF))  # code, 64-bit code, data
    put(PAGE_TABLES, struct.pack("<Q", PAGE_TABLES + 0x1000 | 3))
    for gib in range(4):
        directory = PAGE_TABLES + 0x2000 + 0x1000 * gib
        put(PAGE_TABLES + 0x1000 + 8 * gib, struct.pack("<Q", directory | 3))
        put(directory, struct.pack("<512Q", *((gib << 30) + n * 2 * MIB | 0x83 for n in range(512))))
    put(ZERO_PAGE, zero_page(memory, initrd_bytes))
    put(COMMAND_LINE, command_line.encode() + b"\0")
    return bytes(out)


def boot_sector(entry, work):
    """boot.S, assembled for this kernel."""
    symbols = {"GDT": GDT, "PAGE_TABLES": PAGE_TABLES, "ZERO_PAGE": ZERO_PAGE, "KERNEL": entry}
    subprocess.run(["as", "--64", *(f"--defsym={name}={value}" for name, value in symbols.items()), "-o", work / "boot.o", HERE / "boot.S"], check=True)
    subprocess.run(["ld", "-m", "elf_x86_64", "-Ttext=0x7C00", "--oformat=binary", "-e", "start", "-o", work / "boot.bin", work / "boot.o"], check=True)
    return (work / "boot.bin").read_bytes()


def write(work, vmlinux, memory, command_line, initrd):
    """Writes the images into the directory `work`. Returns the floppy, and (file, address) of each image."""
    kernel, base, entry = load_segments(vmlinux)
    files = {"kernel": (kernel, base), "tables": (tables(memory, len(initrd), command_line), TABLES), "initrd": (initrd, INITRD)}
    for name, (data, _) in files.items():
        (work / name).write_bytes(data)
    floppy = work / "floppy"
    sector = boot_sector(entry, work)
    floppy.write_bytes(sector + bytes(FLOPPY_BYTES - len(sector)))
    return floppy, [(work / name, at) for name, (_, at) in files.items()]
