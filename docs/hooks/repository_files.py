"""Brings files around docs/ into the site, and rewrites the links that lead out of docs/.

A file keeps its path in the repository: CHANGELOG.md becomes CHANGELOG.html, and benchmarks/results/bias.md becomes
benchmarks/results/bias.html. An example becomes a page with its code. A link to anything else in the repository, such
as a folder of sources, becomes its text without a link, because there is no public address to send a reader to.

A link whose text is a file's name, as readers of the repository know it, gets the title of its page in the navigation.
"""

import ast
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/results/*.md")
CODE = {
    "examples/*.py": "python",
    "examples/*.toml": "toml",
    "examples/*.jsonl": "json",
    "examples/*.sh": "sh",
    "examples/*.yaml": "yaml",
    "LICENSE": "text",
}
HOME = "README.md"
"""Its place in the site is the home page."""

LINK = re.compile(r"(?<!\!)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2[^\n]*$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that come from outside docs/."""
    root = root_of(config)
    for path in sorted(each for pattern in PAGES for each in root.glob(pattern)):
        add(files, config, path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    listed = []
    for path, language in sorted((each, language) for pattern, language in CODE.items() for each in root.glob(pattern)):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        add(files, config, f"{name}.md", code_page(path.name, language, text))
        if name.startswith("examples/"):
            listed.append(f"| [{path.name}]({path.name}.md) | {summary(language, text)} |")
    add(files, config, "examples/index.md", "\n".join([EXAMPLES, *listed, ""]))
    tables = [
        f"| [{heading(path)}]({path.name}) | `{path.name}` |" for path in sorted(root.glob("benchmarks/results/*.md"))
    ]
    add(files, config, "benchmarks/results/index.md", "\n".join([TABLES.rstrip(), *tables, ""]))
    return files


EXAMPLES = """# Examples

Each `.py` file runs as it is, from the root of the repository. A `.toml` file says in its first lines which command
takes it. Files for a cluster have paths to replace.

| file | what it shows |
| --- | --- |"""

TABLES = """# Benchmark tables

The tables behind the [summary of the benchmarks](../../results.md). Each says its settings, machine and date.

| table | file |
| --- | --- |"""


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with its links to files of the repository led to their places in the site."""
    here = page.file.src_uri
    # where the page lies in the repository, because its links start there
    source = here if page.file.generated_by else f"docs/{here}"
    titles = dict(titles_of(config.nav or []))

    def place(target: str) -> str | None:
        """Return the link to use, None if the file is not in the site."""
        path, mark, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:|/", target):
            return target
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if page.file.generated_by and files.get_file_from_path(joined(here, path)):
            return target
        inside = "index.md" if found == HOME else found.removeprefix("docs/")
        for name in (inside, f"{inside}.md", f"{inside}/index.md"):
            if files.get_file_from_path(name):
                return posixpath.relpath(name, posixpath.dirname(here) or ".") + mark + anchor
        return None if (root_of(config) / found).exists() and not found.startswith("docs/") else target

    def link(found: re.Match[str]) -> str:
        to, text = place(found["target"]), found["text"]
        if to is None:
            return text
        if to.endswith(".md") and posixpath.basename(text.strip("`")) == posixpath.basename(found["target"]):
            text = titles.get(joined(here, to), text)
        return f"[{text}]({to})"

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(link, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(link, markdown[end:])])


def titles_of(entries: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield the path and the title of each page of the navigation that has a title there."""
    for entry in entries:
        for title, value in entry.items() if isinstance(entry, dict) else ():
            yield from [(value, title)] if isinstance(value, str) else titles_of(value)


def joined(page: str, path: str) -> str:
    """Return the place that ``path`` leads to from ``page``."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path))


def add(files: Files, config: MkDocsConfig, name: str, text: str) -> None:
    """Add the page ``name`` to the site, unless it is there."""
    if files.get_file_from_path(name) is None:
        files.append(File.generated(config, name, content=text))


def code_page(name: str, language: str, text: str) -> str:
    """Return a page that shows one file."""
    return f"# {name}\n\n```{language}\n{text.rstrip()}\n```\n"


def summary(language: str, text: str) -> str:
    """Return what the file says about itself: the first line of its docstring or of its first comment."""
    if language == "python":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return next((line[2:] for line in text.splitlines() if line.startswith("# ")), "")


def heading(path: Path) -> str:
    """Return the first heading of a page, or its file's name."""
    found = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else path.stem


def root_of(config: MkDocsConfig) -> Path:
    """Return the root of the repository, which the configuration lies in."""
    return Path(os.path.dirname(config.config_file_path)).resolve()
