#!/usr/bin/env python3
"""Checks that every public declaration of the library is documented, and that its README shows code that is compiled.

    tools/lint/public_docs.py [ROOT]

Doxygen (docs/Doxyfile) reads vpmu/include, and each of its warnings is a finding: a type, function or constant without a `///` comment of its
own, a comment that it cannot follow. TOLD_ELSEWHERE says what needs none. Each C++ block of vpmu/README.md has to be an excerpt of the embedding
example.
"""
import pathlib
import re
import subprocess
import tempfile

from source_tree import files, finish, required, root_from_arguments

README = "vpmu/README.md"
EXAMPLE = "vpmu/examples/embed/embed.cpp"
SETTINGS = pathlib.Path(__file__).parents[2] / "docs/Doxyfile"
# What doxygen warns of, and another comment tells: the struct's of its data, the heading's of the manual's names, the language of what is defaulted.
TOLD_ELSEWHERE = re.compile(r"Member \w+ \(variable\) of (struct|class) |of namespace vpmu::(msr|reg::\w+) is not documented|Member .*=default \(\w+\) of ")
# Doxygen is silent on what stands in a file or namespace that itself has no comment: here each has one.
HEADED = r"""INPUT_FILTER = "sed -E -e '1s,$, /** @file */,' -e 's,^namespace .*\{$,/** - */ &,' -e '/\/\/\//s/#([A-Z])/\\#\1/g'" """


def doxygen_findings(root):
    """What it says, without the paths' beginning."""
    program = required("doxygen")
    with tempfile.TemporaryDirectory() as out:
        # Some output it has to make.
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
