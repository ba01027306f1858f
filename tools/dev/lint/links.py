#!/usr/bin/env python3
"""Checks the links of the documentation: the file in this tree exists, and so does the heading after a `#`.

    tools/dev/lint/links.py [ROOT]

A link leads to what the site has, too (tools/docs): a source file is named without one. Looks at [text](target) and ![text](target) in every Markdown file, outside of code. Links to other sites are not followed. Another document must link to
every document except README.md: otherwise nobody finds it.
"""
import pathlib
import re
import urllib.parse

from source_tree import files, finish, root_from_arguments

LINK = re.compile(r"\[[^][]*(?:\[[^][]*\][^][]*)*\]\(([^()\s]+)\)")
# What tools/docs puts into the site.
IN_SITE = re.compile(r".*\.(md|svg|ya?ml)|LICENSE|vpmu/examples(/.*)?")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")


def without_code(text):
    """The text, without fenced and indented blocks and text in backticks."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"(?<=\n\n)(?:(?: {4}|\t).*\n)+", "\n", text)
    return re.sub(r"`[^`\n]*`", lambda m: "x" * len(m.group()), text)


def anchors(text):
    """The anchors of the headings, as GitHub makes them."""
    found = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *#* *$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        count = found.get(name, 0)
        found[name] = count + 1
        if count:
            found[f"{name}-{count}"] = 1
    return set(found)


def check(root, documents):
    texts = {path: path.read_text(encoding="utf-8") for path in documents}
    linked = set()
    for path, text in texts.items():
        name = path.relative_to(root).as_posix()
        for line in without_code(text).splitlines():
            for target in LINK.findall(line):
                if ELSEWHERE.match(target):
                    continue
                file, _, anchor = urllib.parse.unquote(target).partition("#")
                to = (path.parent / file).resolve() if file else path
                if not to.exists() or not to.is_relative_to(root):
                    yield f"{name}: link to {target}: there is no such file"
                    continue
                to = to / "README.md" if to.is_dir() and (to / "README.md").exists() else to
                if not IN_SITE.fullmatch(to.relative_to(root).as_posix()):
                    yield f"{name}: link to {target}: the site does not have it"
                if to != path:
                    linked.add(to)
                if anchor and anchor not in anchors(texts.get(to, "")):
                    yield f"{name}: link to {target}: there is no such heading"
    for path in documents:
        if path not in linked and path != root / "README.md":
            yield f"{path.relative_to(root).as_posix()}: no other document links to it"


def main():
    root = root_from_arguments().resolve()
    documents = [pathlib.Path(path).resolve() for path in files(root, ".md")]
    finish("links", list(check(root, documents)), len(documents), "Mend the link, or link to the document from where a reader would look for it.")


if __name__ == "__main__":
    main()
