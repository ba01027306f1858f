#!/usr/bin/env python3
"""Checks that every public declaration of the library is documented, and that its README shows code that is compiled.

    tools/lint/public_docs.py [ROOT]

A type, function or constant at namespace scope of vpmu/include, and a public member function, needs a `///` comment of its own or
the one that heads its group (no blank line between). Each C++ block of vpmu/README.md has to be an excerpt of the embedding example.
"""
import re

from source_tree import files, finish, root_from_arguments

README = "vpmu/README.md"
EXAMPLE = "vpmu/examples/embed/embed.cpp"
# Where constants of one meaning stand together under the heading comment of their namespace.
DECLARATION = re.compile(r"^(template|struct|class|enum|constexpr|inline|\[\[nodiscard\]\]|[A-Za-z_:<>*& ]+ [a-z_]+\()")
MEMBER_FUNCTION = re.compile(r"^  ((\[\[nodiscard\]\]|constexpr|explicit|static|virtual)\s.*\(|[A-Za-z_:<>*&]+ [a-z_]+\()")
IGNORED = re.compile(r"^\s*(friend\b|(constexpr )?[A-Z]\w*\(\) = default;|~|using\b|static_assert|namespace\b|struct \w+;|class \w+;)")


def documented(lines, index):
    """Whether a `///` stands in the line, or above it in the same group of lines."""
    if "///" in lines[index]:
        return True
    for above in range(index - 1, -1, -1):
        stripped = lines[above].strip()
        if stripped.startswith("///"):
            return True
        if stripped.startswith("namespace ") and above > 0:
            return lines[above - 1].startswith("///")  # a namespace of constants with a heading of its own
        if not stripped or stripped.endswith((":", "{")):
            return False
    return False


def undocumented(lines):
    private = False
    in_class = False
    for index, line in enumerate(lines):
        if re.match(r"^(class|struct|template|enum)\b", line):
            private, in_class = line.startswith("class"), line.rstrip().endswith("{")
        elif line.startswith("};"):
            in_class = False
        elif line.strip() in ("public:", "private:", "protected:"):
            private = line.strip() != "public:"
        if IGNORED.match(line):
            continue
        at_namespace = DECLARATION.match(line) and not in_class or re.match(r"^(class|struct|enum)\b", line)
        if (at_namespace or in_class and not private and MEMBER_FUNCTION.match(line)) and not documented(lines, index):
            yield index + 1, line.strip()


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
    findings = []
    for path in headers:
        for number, line in undocumented(path.read_text(encoding="utf-8").splitlines()):
            findings.append(f"{path.relative_to(root).as_posix()}:{number}: no /// comment: {line}")
    if (root / EXAMPLE).is_file():
        findings += readme_findings(root)
    finish("public_docs", findings, len(headers), "Say what it gives, how it fails and what it costs.")


if __name__ == "__main__":
    main()
