"""The site: it builds without a warning, loads nothing from other servers, and shows every public name and command."""

import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import griffe
import pytest
import yaml
from typer import Context
from typer.main import get_command

from apportion.cli import app
from tests.public_names import listed, trees_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "NO_MKDOCS_2_WARNING": "1"}
LOADING = dict.fromkeys(("script", "img", "iframe", "source", "video", "audio"), "src") | {"link": "href"}
"""Attributes whose address a browser loads without being asked. An ordinary link is not among them."""

NEVER_CALLED = {
    "https://unpkg.com/mermaid@11/dist/mermaid.min.js": "the theme loads it on a page with a diagram of mermaid",
    "https://unpkg.com/resize-observer-polyfill": "the theme loads it in browsers without ResizeObserver, before 2020",
    "https://api.github.com/repos/": "the theme asks for stars if the configuration names a repository",
    "https://api.github.com/users/": "the same",
}
"""Addresses in the theme's scripts, and why no page of this site makes them load."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built once."""
    folder = tmp_path_factory.mktemp("site")
    done = mkdocs("build", "--strict", "--site-dir", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def mkdocs(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
    )


class Tags(HTMLParser):
    """What a page loads, its ids, and its words that are explained."""

    def __init__(self, page):
        super().__init__()
        self.loads, self.ids, self.explained, self.inside = [], set(), [], ""
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in LOADING and given.get(LOADING[tag]) and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given[LOADING[tag]])
        if "id" in given:
            self.ids.add(given["id"])
        self.inside = tag

    def handle_data(self, data):
        if self.inside == "abbr":
            self.explained.append(data)
        self.inside = ""


tags = cache(Tags)
"""Three tests read each page."""


def pages(site):
    return sorted(site.rglob("*.html"))


def configuration():
    class Loader(yaml.SafeLoader):
        """Reads the configuration without the functions that it names."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)
    return yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def test_pages_load_nothing_from_other_servers(site):
    outside = {
        str(page.relative_to(site)): [each for each in tags(page).loads if re.match(r"(?:[a-z]+:)?//", each)]
        for page in pages(site)
    }
    assert len(outside) > 80
    assert not {page: loads for page, loads in outside.items() if loads}
    style = re.compile(r"(?:url\(|@import)\s*['\"]?(?:[a-z]+:)?//")
    assert not [page for page in (*pages(site), *site.rglob("*.css")) if style.search(page.read_text())]


def test_scripts_load_nothing_from_other_servers(site):
    """The theme's scripts hold a few addresses, none of which this site makes them load."""
    found = set()
    for script in [*(site / "assets" / "javascripts").glob("*.js"), *(site / "assets").glob("*.js")]:
        text = re.sub(r"/\*.*?\*/", "", script.read_text(), flags=re.DOTALL)
        found |= set(re.findall(r"""(?<=["'`])https?://[^"'`$\s]+(?=["'`$])""", text))
    found = {address for address in found if not address.startswith(("http://www.w3.org/", "https://clipboardjs.com"))}
    assert found <= NEVER_CALLED.keys(), found - NEVER_CALLED.keys()
    assert "repo_url" not in configuration()
    assert not [page for page in pages(site) if re.search(r'class="[^"]*mermaid', page.read_text())]


def test_the_search_works_without_a_server(site):
    assert (site / "search" / "search_index.js").stat().st_size > 100_000
    assert any("assets/iframe-worker.js" in each for each in tags(site / "index.html").loads)


def imported_names():
    """Return every name of apportion that an example or a document imports."""
    sources = [*(ROOT / "examples").glob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    statement = re.compile(r"^ *from (apportion[\w.]*) import (?:\(([^)]*)\)|([^\n(#]+))", re.MULTILINE)
    for source in sources:
        for module, several, one in statement.findall(source.read_text()):
            for name in (several or one).split(","):
                if name.strip():
                    yield f"{module}.{name.split(' as ')[0].strip()}"


def shown_names(page):
    """Return the names that a page of the reference shows."""
    return re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def package():
    """The package as griffe reads it."""
    return griffe.load("apportion", search_paths=[str(ROOT)], allow_inspection=False)


def home(package, name):
    """Return where a name is defined, by its whole path. A function may share its name with the file that it is in."""
    module, _, own = name.rpartition(".")
    found = package[module.removeprefix("apportion.")] if module != "apportion" else package
    path = found.imports.get(own, name)
    return package[path.removeprefix("apportion.")].canonical_path if path == name else home(package, path)


@pytest.fixture(scope="module")
def documented(package):
    """How often the reference shows each name, by where it is defined. A module shows what it defines."""
    shown = Counter()
    for page in REFERENCE:
        for name in shown_names(page):
            found = package[name.removeprefix("apportion.")]
            members = found.members.values() if found.is_module else [found]
            shown.update(each.canonical_path for each in members if found.is_module <= (not each.is_alias))
    return shown


def test_every_public_name_is_on_one_page_of_the_reference(package, documented):
    names = [name.replace(":", ".") for name in listed(trees_of(ROOT))]
    assert len(names) > 300
    assert not sorted(name for name in names if documented[home(package, name)] != 1)


def test_every_name_that_documents_import_is_on_one_page_of_the_reference(package, documented):
    names = [name for name in imported_names() if not package[home(package, name).removeprefix("apportion.")].is_module]
    assert len(set(names)) > 30
    assert not sorted({name for name in names if documented[home(package, name)] != 1})


def test_settings_in_docstrings_exist(package, documented):
    """What ``Args`` describes is a parameter, or a field of a tuple."""
    wrong = {}
    for path in documented:
        found = package[path.removeprefix("apportion.")]
        if not found.docstring or not (found.is_class or found.is_function):
            continue
        sections = found.docstring.parse("google", warnings=False)
        described = {
            name.strip().lstrip("*")
            for section in sections
            if section.kind is griffe.DocstringSectionKind.parameters
            for each in section.value
            for name in each.name.split(",")
        }
        known = {each.name for each in found.parameters} | ({*found.all_members} if found.is_class else set())
        if described - known:
            wrong[path] = described - known
    assert not wrong


def test_the_page_of_commands_has_every_command_and_option(site):
    text = " ".join((site / "reference" / "commands.html").read_text().split())
    group = get_command(app)
    context = Context(group, info_name="apportion")
    for name in group.list_commands(context):
        assert f'id="apportion-{name}"' in text
        section = text.partition(f'id="apportion-{name}"')[2].partition("<h2")[0]
        command = group.get_command(context, name)
        for parameter in command.get_params(Context(command, parent=context, info_name=name)):
            if parameter.name != "help" and not getattr(parameter, "hidden", False):
                assert parameter.param_type_name == "argument" or parameter.opts[-1] in section, (name, parameter.name)


def test_files_around_the_documents_are_in_the_site(site):
    results = (site / "results.html").read_text()
    assert 'href="benchmarks/results/real_run.html"' in results
    assert 'href="examples/trl_hora.py.html"' in (site / "trl.html").read_text()
    assert not list(site.rglob("hooks"))


def test_tables_and_lists_are_read_as_such(site):
    """A table whose rows differ in length, or a list without an empty line before it, would be a paragraph."""
    raw = re.compile(r"<p>[^<]*\|[ :]?--|<p>(?:(?!</p>).)*\n(?:[-*]|\d\.) ", re.DOTALL)
    found = {page.name: raw.search(page.read_text()) for page in pages(site)}
    assert not {name: match[0] for name, match in found.items() if match}


def test_an_abbreviation_is_explained_once_a_page(site):
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    assert re.search(r"^\S.*\n: ", glossary, re.MULTILINE)
    explained = {page: tags(page).explained for page in pages(site)}
    assert sum(map(len, explained.values())) > 50
    assert not [page for page, words in explained.items() if len(words) != len(set(words))]


def small_site(folder, text):
    """Build a site of few pages by this configuration, in a repository of its own; return how that went."""
    (folder / "docs").mkdir()
    (folder / "docs" / "results.md").write_text("# Results\n")
    (folder / "docs" / "index.md").write_text(f"# Home\n\n{text}\n")
    (folder / "SECURITY.md").write_text("# Security\n\n[Home](docs/index.md)\n")
    (folder / "source.py").write_text("")
    whole = configuration()
    changed = {
        "INHERIT": str(ROOT / "mkdocs.yml"),
        "nav": ["index.md", "SECURITY.md"],
        "not_in_nav": "*.md",
        "hooks": [str(ROOT / hook) for hook in whole["hooks"]],
        "extra_css": [],
        "plugins": [],
    }
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(changed))
    return mkdocs("build", "--strict", "--config-file", str(folder / "mkdocs.yml"), "--site-dir", str(folder / "site"))


def test_links_to_the_repository_lead_to_their_places(tmp_path):
    done = small_site(tmp_path, "[policy](../SECURITY.md), [`source.py`](../source.py), [itself](#home)")
    assert done.returncode == 0, done.stderr
    home, security = ((tmp_path / "site" / name).read_text() for name in ("index.html", "SECURITY.html"))
    assert '<a href="SECURITY.html">policy</a>, <code>source.py</code>, <a' in home
    assert '<a href="index.html">Home</a>' in security


def test_broken_links_fail_the_build(tmp_path):
    broken = ["missing.md", "../missing.py", "index.md#nowhere", "/index.md"]
    done = small_site(tmp_path, " ".join(f"[text]({link})" for link in broken))
    assert done.returncode != 0
    assert not [link for link in broken if f"'{link}'" not in done.stderr], done.stderr
