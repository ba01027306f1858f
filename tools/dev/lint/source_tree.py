"""The project's files, and how a lint reports what it found."""
import pathlib
import shutil
import sys

SKIPPED = {"build", "samples", "__pycache__"}


def files(root, *suffixes):
    """All files under `root` with one of the suffixes, sorted; build trees, dot-directories and lint samples left out."""
    found = []
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        hidden = any(part in SKIPPED or part.startswith(".") for part in parts[:-1])
        if not hidden and path.is_file() and (not suffixes or path.suffix in suffixes):
            found.append(path)
    return found


def root_from_arguments():
    """The tree to check: the only argument, or this project."""
    if len(sys.argv) > 2:
        sys.exit(f"usage: {sys.argv[0]} [ROOT]")
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) == 2 else pathlib.Path(__file__).parents[3]
    if not root.is_dir():
        sys.exit(f"{root} is no directory; give the root of the tree to check")
    return root


def required(program):
    """The path of a program that tools/setup installs."""
    path = shutil.which(program)
    if path is None:
        sys.exit(f"{program} is not installed; run tools/setup")
    return path


def finish(name, findings, checked, advice):
    """Prints the findings and ends: 0 when there are none. A run that checked nothing is a failure."""
    for finding in findings:
        print(finding)
    if checked == 0:
        sys.exit(f"{name}: found nothing to check; is this the root of the tree?")
    if findings:
        sys.exit(f"{name}: {len(findings)} found in {checked} files. {advice}")
    print(f"{name}: {checked} files, nothing found")
