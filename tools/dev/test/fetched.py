"""The environment in which vpmu finds the daemons that tools/dev/bed/fetch has fetched."""

import os

from paths import CACHE


def environment(debian13=False):
    """This process's, with the fetched daemons where it names none; with `debian13` those of `tools/dev/bed/fetch debian13`."""
    own = dict(os.environ)
    if debian13:
        own |= {"VPMU_VIRTIOFSD": str(CACHE / "debian13/virtiofsd"), "VPMU_PASST": str(CACHE / "debian13/passt")}
    for variable, program in (("VPMU_VIRTIOFSD", "lib/qemu/virtiofsd"), ("VPMU_STORAGE_DAEMON", "bin/qemu-storage-daemon")):
        path = CACHE / "virtiofsd/usr" / program
        if variable not in own and path.exists():
            # The libraries of the storage daemon are those of the QEMU beside it.
            libraries = [str(CACHE / part / "lib/x86_64-linux-gnu") for part in ("virtiofsd/usr", "qemu7/usr", "qemu7")]
            own |= {variable: str(path), "LD_LIBRARY_PATH": ":".join(libraries)}
    return own
