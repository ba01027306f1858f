#!/usr/bin/env python3
"""Checks that every public declaration of the library is documented, and that the code in its README is compiled.

    tools/dev/lint/public_docs.py [ROOT]

Doxygen (docs/Doxyfile) reads vpmu/include, and each of its warnings is a finding: a type, function or constant without a `///` comment of its
own, or a comment that Doxygen cannot parse. TOLD_ELSEWHERE lists what needs no comment. Each C++ block of vpmu/README.md has to be an excerpt of the
embedding example.
"""
import pathlib
import re
import subprocess
import tempfile

from source_tree import files, finish, required, root_from_arguments

README = "vpmu/README.md"
EXAMPLE = "vpmu/examples/embed/embed.cpp"
SETTINGS = pathlib.Path(__file__).parents[3] / "docs/Doxyfile"
# Warnings to ignore, because another comment documents it: a struct's comment its data, a heading the manual's names, the language defaulted functions.
TOLD_ELSEWHERE = re.compile(r"Member \w+ \(variable\) of (struct|class) |of namespace vpmu::(msr|(reg|x86)::\w+) is not documented|Member .*=default \(\w+\) of ")
# Doxygen does not warn about the contents of a file or namespace that has no comment itself: here each gets one.
HEADED = r"""INPUT_FILTER = "sed -E -e '1s,$, /** @file */,' -e 's,^namespace .*\{$,/** - */ &,' -e '/\/\/\//s/#([A-Z])/\\#\1/g'" """


def doxygen_findings(root):
    """Doxygen's warnings, with paths relative to the root."""
    program = required("doxygen")
    with tempfile.TemporaryDirectory() as out:
        # Doxygen must write some output.
        settings = f"{SETTINGS.read_text(encoding='utf-8')}\n{HEADED}\nGENERATE_XML = YES\nOUTPUT_DIRECTORY = {out}\n"
        said = subprocess.run([program, "-"], input=settings, cwd=root, capture_output=True, text=True, check=False)
    lines = {line.removeprefix(f"{root.resolve()}/") for line in said.stderr.splitlines() if line.strip()}
    if said.returncode and not lines:
        lines = {f"doxygen ended with code {said.returncode}"}
    return sorted(line for line in lines if not TOLD_ELSEWHERE.search(line))


def readme_findings(root):
    example = (root / EXAMPLE).read_text(encoding="utf-8")
    blocks = re.findall(r"^```cpp\n(.*?)^```", (root / README).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if not blocks:
        yield f"{README}: shows no code"
    for block in blocks:
        if block.strip() not in example:
            yield f"{README}: the block that begins '{block.strip().splitlines()[0]}' is no excerpt of {EXAMPLE}"


def main():
    root = root_from_arguments()
    headers = [p for p in files(root, ".hpp") if p.relative_to(root).as_posix().startswith("vpmu/include/")]
    findings = doxygen_findings(root)
    if (root / EXAMPLE).is_file():
        findings += readme_findings(root)
    finish("public_docs", findings, len(headers), "Say what it gives, how it fails and what it costs.")


if __name__ == "__main__":
    main()
