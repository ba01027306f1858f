"""The commands that compile one C++ file by itself, and which files changed last."""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = ROOT / "build/dev"
# Beside a unity build, whose commands are for batches of files: it is configured, and only its generated headers are built.
SINGLE = ROOT / "build/single"


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def in_order_of_change():
    """The tracked C++ files, those that changed last first."""
    formatted = {line for line in (ROOT / ".git-blame-ignore-revs").read_text(encoding="ascii").splitlines() if not line.startswith("#")}
    names = dict.fromkeys(git("diff", "--name-only", "HEAD").splitlines())
    commit = None
    for line in git("log", "--format=commit %H", "--name-only").splitlines():
        if line.startswith("commit "):
            commit = line.split()[1]
        elif line and commit not in formatted:
            names.setdefault(line)
    tracked = git("ls-files").splitlines()
    names.update(dict.fromkeys(name for name in tracked if name not in names))
    return [name for name in names if name.endswith(".cpp") and name in set(tracked)]


def build_directory():
    """The directory whose compile_commands.json has a command for each file."""
    cache = BUILD / "CMakeCache.txt"
    if not cache.exists():
        sys.exit("build/dev is not configured; run: cmake --preset dev && cmake --build --preset dev")
    if not re.search(r"^CMAKE_UNITY_BUILD:\w+=ON$", cache.read_text(encoding="utf-8"), re.M):
        return BUILD
    for command in (["cmake", "--preset", "dev", "-B", SINGLE, "-DCMAKE_UNITY_BUILD=OFF"], ["ninja", "-C", SINGLE, "vpmu_generated_headers"]):
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return SINGLE


def commands(directory):
    """Name -> its first entry in the directory's compile_commands.json, of the project's own files."""
    entries = json.loads((directory / "compile_commands.json").read_text(encoding="utf-8"))
    found = {}
    for entry in entries:
        path = pathlib.Path(entry["file"])
        if path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "build"):
            found.setdefault(path.relative_to(ROOT).as_posix(), entry)
    return found
