"""Rules of the house, over the source itself: which way imports run, what stays out, what must be documented."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import apportion
from apportion.config import load

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "apportion"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

ORDER = (
    {"types"},
    {"stopping"},
    {"predictors"},
    {"baselines"},
    {"allocators"},
    {"advantages", "evaluation", "loop", "solve"},
    {"consensus"},
    {""},
    {"toml", "tables", "allocation_text", "files"},
    {"config"},
    {"verifiers"},
    {"questions", "records"},
    {"samplers"},
    {"vote"},
    {"data"},
    {"lab"},
    {"integrations"},
    {"verl"},
    {"cli"},
    {"__main__"},
)
"""Parts of the package, first to last; "" is ``apportion/__init__.py``. A part imports earlier ones, or itself."""

ALLOWED = {
    "torch": ("lab", "integrations"),
    "transformers": ("lab", "predictors", "integrations"),
    "trl": ("integrations",),
    "accelerate": ("integrations",),
    "verl": ("integrations",),
    "ray": ("integrations",),
    "hydra": ("integrations",),
    "omegaconf": ("integrations",),
    "tensordict": ("integrations",),
    "transfer_queue": ("integrations",),
    "sklearn": (),
    "pandas": (),
    "matplotlib": ("lab",),
    "typer": ("cli",),
    "rich": ("lab", "allocation_text", "vote"),
    "pydantic": ("config",),
    "sentence_transformers": ("predictors",),
    "pyarrow": ("tables", "records", "lab"),
    "openai": ("samplers",),
    "httpx": (),
    "math_verify": ("verifiers",),
    "datasets": ("data", "integrations"),
}
"""Who may import what is not among the core's requirements."""


def part(module: str) -> str:
    return [*module.split("."), ""][1]


def rank(module: str) -> int:
    ranks = [place for place, parts in enumerate(ORDER) if part(module) in parts]
    assert ranks, f"{module} has no place in ORDER; say there where it stands"
    return ranks[0]


def imported(module: str) -> Iterator[str]:
    """Everything that ``module`` imports, anywhere in its source; of a ``from``, the submodule where it is one."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module} imports relatively; write the module's full name"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module


def own(module: str) -> set[str]:
    return {name for name in imported(module) if name.split(".")[0] == "apportion"}


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    for name in own(module):
        assert part(name) == part(module) or rank(name) < rank(module), f"{module} imports {name}, which comes later"


def test_no_modules_import_each_other() -> None:
    TopologicalSorter({module: own(module) for module in MODULES}).prepare()


@pytest.mark.parametrize("module", MODULES)
def test_what_is_optional_is_imported_only_where_it_may_be(module: str) -> None:
    for name in {name.split(".")[0] for name in imported(module)} & ALLOWED.keys():
        assert part(module) in ALLOWED[name], f"{module} imports {name}; only {ALLOWED[name]} may"


def test_importing_the_package_is_light_and_quick() -> None:
    """Beyond numpy, which every user has imported, it takes no heavy package, scipy among them, and little time."""
    heavy = {*ALLOWED, "scipy"}
    code = (
        "import sys, time, numpy; started = time.process_time(); import apportion\n"
        "seconds = time.process_time() - started\n"
        f"print(seconds, *({heavy!r} & sys.modules.keys()))"
    )
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        ).stdout.split()
        for _ in range(5)
    ]
    assert all(len(run) == 1 for run in runs), f"import apportion imports {runs[0][1:]}"
    assert min(float(run[0]) for run in runs) <= 0.3  # half of it compiles the source where no bytecode may be kept


def test_what_takes_scipy_is_found_when_it_is_asked_for() -> None:
    assert apportion.stopping is import_module("apportion.stopping")
    for name in ("OptPO", "SharedVotes", "TTRL", "Voting"):
        assert getattr(apportion, name) is getattr(apportion.consensus, name) and name in apportion.__all__
    with pytest.raises(AttributeError, match="has no attribute 'Optpo'"):
        apportion.__getattr__("Optpo")


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_documented(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text())
    assert ast.get_docstring(tree), f"{module} has no docstring"
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{module}.{node.name} has no docstring"


def test_every_toml_file_can_be_loaded() -> None:
    skipped = {"runs", "build", "dist"}
    for path in ROOT.rglob("*.toml"):
        folders = path.relative_to(ROOT).parts[:-1]
        if path != ROOT / "pyproject.toml" and not any(name.startswith(".") or name in skipped for name in folders):
            assert load(path, []), f"{path} is empty"


def test_every_make_command_in_the_readme_exists() -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("there is no README yet")
    named = set(re.findall(r"(?:^\s*(?:\$ )?|`)make ([a-z][\w-]*)", readme.read_text(), re.MULTILINE))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named <= targets, (
        f"the README names make {', '.join(sorted(named - targets))}; add to the Makefile or remove"
    )
