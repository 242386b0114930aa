"""Tests of what a package index and a person who cites see: version, files, README, extras and citation."""

import json
import os
import re
import subprocess
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution

import pytest

import apportion
from tests.cases import lines
from tests.test_house import ROOT
from tests.warm import cold

yaml = pytest.importorskip("yaml")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
HATCH = PROJECT["tool"]["hatch"]
PAPERS = lines("""
    VIP   => arXiv:2602.01601 => Nguyen => 6
    HORA  => arXiv:2605.07114 => Wang   => 5
    AR3PO => arXiv:2509.25808 => Zhang  => 8
    OptPO => arXiv:2512.02882 => Wang   => 6
""")
"""The paper, arXiv's number, the first author's family name, and the number of authors."""


def test_the_version_is_written_once_and_cited():
    assert "version" not in PROJECT["project"] and "version" in PROJECT["project"]["dynamic"]
    assert HATCH["version"] == {"path": "apportion/__init__.py"}
    assert CITATION["version"] == apportion.__version__
    newest = re.search(r"^## (\S+), (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest.groups() == (apportion.__version__, str(CITATION["date-released"]))


def test_the_citation_names_the_licence_and_the_four_papers_with_all_authors():
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["license"] == PROJECT["project"]["license"] == "Apache-2.0"
    found = []
    for paper in CITATION["references"]:
        (identifier,) = paper["identifiers"]
        authors = paper["authors"]
        assert all({"family-names", "given-names"} == author.keys() for author in authors), paper["title"]
        assert paper["url"] == f"https://arxiv.org/abs/{identifier['value'].removeprefix('arXiv:')}"
        author, authors = authors[0]["family-names"], str(len(authors))
        found.append((identifier["description"], identifier["value"], author, authors))
    assert found == PAPERS


def test_every_tracked_file_is_in_the_sdist_or_left_out_on_purpose():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    tracked = {line.split("/")[0] for line in listed.stdout.splitlines()}
    included = {each.removeprefix("/") for each in HATCH["build"]["targets"]["sdist"]["include"]}
    always = {"pyproject.toml", ".gitignore"}
    assert tracked - included == {*always, ".ci"}


def test_the_readme_on_a_package_index_has_no_relative_link_and_no_picture():
    readme = (ROOT / "README.md").read_text()
    shown = readme
    for each in HATCH["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        shown = re.sub(each["pattern"], each["replacement"], shown)
    assert not re.search(r"\]\((?!https?:)", shown) and "![" not in shown
    outside = re.findall(r"\]\(https?:[^)]*\)", readme)
    assert outside and re.findall(r"\]\(https?:[^)]*\)", shown) == outside
    assert re.findall(r"^```.*?^```", shown, re.MULTILINE | re.DOTALL) == re.findall(
        r"^```.*?^```", readme, re.MULTILINE | re.DOTALL
    )


COMMANDS = """
    typer       => cli   => diagnose log
    math_verify => vote  => vote --questions q.jsonl --out o.jsonl --base-url http://localhost:1/v1 --model m
    openai      => vote  => vote --questions q.jsonl --out o.jsonl --base-url http://a/v1 --model m --equivalence exact
    starlette   => serve => serve --upstream http://localhost:1/v1
    uvicorn     => serve => serve --upstream http://localhost:1/v1
    torch       => lab   => lab --dry-run
"""
"""A package that is missing, the extra that has it, and a command that needs it."""

WITHOUT = """
import os, sys, numpy, typer
for place in range(1, len(sys.argv), 2):
    if not os.fork():
        missing, sys.argv = sys.argv[place], ["apportion", *sys.argv[place + 1].split()]
        sys.modules[missing] = None
        from apportion.__main__ import main
        sys.exit(main())
    code = os.waitstatus_to_exitcode(os.wait()[1])
    sys.stderr.write(f"{code}\\n")
"""
"""Runs each command in a fork of a process that has imported nothing of this package."""


def test_a_command_without_its_extra_says_which_one(tmp_path):
    (tmp_path / "q.jsonl").write_text('{"prompt": "What is 2 + 2?"}\n')
    cases = lines(COMMANDS)
    words = [word for missing, _, command in cases for word in (missing, command)]
    said = python("-c", WITHOUT, *words, folder=tmp_path).stderr.splitlines()
    assert len(said) == 2 * len(cases), said  # one line and an exit code each
    for (_, extra, command), line, code in zip(cases, said[::2], said[1::2], strict=True):
        assert f"pip install 'apportion[{extra}]'" in line and code == "2", (command, line)
    assert said[0] == "apportion's command line needs typer, which is not installed; pip install 'apportion[cli]'"


def python(*words, folder=ROOT):
    done = cold(*words, folder=folder)
    assert done.returncode == 0, done.stderr
    return done


WITH_EXTRAS = {"cli", "config", "lab", "tinker", "vote"}
"""Parts of the package whose import needs more than the core's requirements."""

IMPORTS = """
import importlib, json, pkgutil, sys, apportion
assert apportion.__path__[0].startswith(sys.prefix), apportion.__path__
found = {}
for part in pkgutil.iter_modules(apportion.__path__):
    if part.name != "__main__":
        try:
            importlib.import_module(f"apportion.{part.name}")
        except ImportError as error:
            found[part.name] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the sdist that was built from the checkout."""
    pytest.importorskip("hatchling")
    pytest.importorskip("hatch_fancy_pypi_readme")
    folder = tmp_path_factory.mktemp("built")
    python("-m", "hatchling", "build", "-t", "sdist", "-d", folder)
    (sdist,) = folder.glob("apportion-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    python("-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=unpacked)
    (found,) = folder.glob("apportion-*.whl")
    return found


def fresh(folder):
    """Make an empty environment. Return its Python."""
    python("-m", "venv", "--without-pip", folder)
    return folder / "bin" / "python"


def install(own, *arguments):
    python("-m", "pip", "--python", own, "--quiet", "install", "--no-compile", *arguments)


def installed(own, *arguments):
    """Run an environment's own Python, and return what it printed. It sees nothing of this one."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_CONSTRAINT"))}
    done = subprocess.run([str(own), "-I", *arguments], env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_installed(own):
    """Check that the core imports without any extra, allocates, and that the command says which extra it lacks."""
    found = json.loads(installed(own, "-c", IMPORTS))
    assert found.keys() == WITH_EXTRAS, found
    assert installed(own, "-c", "import apportion; print(apportion.allocate([0.1, 0.5, 0.9], 24).tolist())").strip()
    done = subprocess.run([str(own.with_name("apportion")), "diagnose", "log"], capture_output=True, text=True)
    assert done.returncode and "pip install 'apportion[cli]'" in done.stderr, done.stderr


@pytest.mark.slow
def test_the_wheel_of_the_sdist_works_beside_numpy_and_scipy_alone(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {
        "apportion", "hydra_plugins", f"apportion-{apportion.__version__}.dist-info"
    }  # fmt: skip
    assert "apportion/py.typed" in names
    assert "hydra_plugins/__init__.py" not in names  # or Hydra would no longer find the plugins of other packages
    own = fresh(tmp_path / "venv")
    install(own, "--no-index", "--no-deps", str(wheel))
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    for requirement in ("numpy", "scipy"):
        for name in {file.parts[0] for file in distribution(requirement).files} - {"..", "__pycache__"}:
            (packages / name).symlink_to(distribution(requirement).locate_file(name))
    check_installed(own)


@pytest.mark.soak
def test_the_wheel_finds_its_requirements_without_constraints(wheel, tmp_path):
    """It asks the package index."""
    own = fresh(tmp_path / "venv")
    install(own, str(wheel))
    check_installed(own)
