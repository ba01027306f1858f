"""What `vpmu exec` needs and tools/bed/fetch has fetched."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[4]
CACHE = pathlib.Path(os.environ.get("VPMU_CACHE", ROOT / "build/cache"))
KERNEL = CACHE / "l2/boot/vmlinuz"


def environment():
    """This process's, with the fetched virtiofsd where VPMU_VIRTIOFSD names none."""
    own = dict(os.environ)
    fetched = CACHE / "virtiofsd/usr"
    if "VPMU_VIRTIOFSD" not in own and fetched.exists():
        own |= {"VPMU_VIRTIOFSD": str(fetched / "lib/qemu/virtiofsd"), "LD_LIBRARY_PATH": str(fetched / "lib/x86_64-linux-gnu")}
    return own
