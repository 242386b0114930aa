"""Explains abbreviations on every page where they first occur, in the words of the glossary.

docs/glossary.md is a list of definitions: a line with the term, then ``:   definition``. A term, or a part of it, that
has two capitals, such as GRPO or OptPO, is an abbreviation. Its explanation is the first sentence of the definition.
"""

import html
import re
from functools import cache
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

GLOSSARY = "glossary.md"
ENTRY = re.compile(r"^(?P<term>\S[^\n]*)\n+: +(?P<definition>\S.*(?:\n(?![ \t]*$|:)[^\n]+)*)", re.MULTILINE)
ABBREVIATION = re.compile(r"(?<![\w-])(?=\w*[A-Z]\w*[A-Z])[A-Z]\w{1,9}(?![\w-])")
SENTENCE = re.compile(r"(?<!\be\.g)(?<!\bet al)(?<!\bi\.e)(?<!\bvs)(?<!\bDr)[.!?](?=\s|$)")
SHOWN = re.compile(r'<abbr title="[^"]*">([^<]*)</abbr>')
NOT_HERE = re.compile(r"<(h[1-6]|a|code|pre|th)\b.*?</\1>", re.DOTALL)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Append the explanations to each page but the glossary."""
    if page.file.src_uri == GLOSSARY:
        return markdown
    return "\n".join([markdown, "", *(f"*[{term}]: {text}" for term, text in explained(Path(config.docs_dir)).items())])


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep the explanation of each term where it first stands in running text, so that few words are underlined."""
    elsewhere = [found.span() for found in NOT_HERE.finditer(content)]
    seen: set[str] = set()

    def shown(found: re.Match[str]) -> str:
        if found[1] in seen or any(start < found.start() < end for start, end in elsewhere):
            return found[1]
        seen.add(found[1])
        return found[0]

    return SHOWN.sub(shown, content)


@cache
def explained(docs: Path) -> dict[str, str]:
    """Return the first sentence about each abbreviation of the glossary; {} if there is no glossary."""
    glossary = docs / GLOSSARY
    if not glossary.exists():
        return {}
    found = {}
    for entry in ENTRY.finditer(glossary.read_text(encoding="utf-8")):
        for term in ABBREVIATION.findall(entry["term"]):
            found.setdefault(term, first_sentence(entry["definition"]))
    return found


def first_sentence(definition: str) -> str:
    """Return the first sentence of ``definition`` as plain text."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(definition.split()))
    plain = re.sub(r"[`*]", "", text)
    end = SENTENCE.search(plain)
    return html.unescape(plain[: end.end()] if end else plain)
