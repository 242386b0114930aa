"""Rules of the house, over the source itself: which way imports run, what stays out, what must be documented."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from apportion.config import load
from tests.cases import lines
from tests.warm import cold

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "apportion"


def sources(*folders):
    """Return the path of every module in ``folders`` by its name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


MODULES = sources("apportion")
SOURCES = sources("apportion", "hydra_plugins", "examples", "benchmarks")

ORDER = tuple(
    {room.removeprefix("apportion") for room in row.split()}
    for (row,) in lines("""
    untrusted
    checks described user_functions
    types
    stopping
    predictors
    baselines selection
    allocators
    advantages evaluation loop presets solve
    scheduler
    apportion
    rows
    toml tables messages
    answers
    questions
    verifiers
    config
    runs endpoint
    records
    replay simulation
    diagnosis
    vote engines
    forecast
    gateway
    lab
    trl verl tinker
    report
    cli
    __main__
    """)
)
"""Parts of the package, first to last; "" is ``apportion/__init__.py``. A part imports earlier ones, or itself."""

LAB = ("world", "policy", "training", "study", "report", "command")
"""Rooms of the lab, first to last. A room imports earlier ones, or itself."""

COORDINATOR = "apportion.verl.coordinator"

ALLOWED = {
    library: rooms.split()
    for library, rooms in lines("""
    torch                 => lab trl verl engines
    tinker                => tinker
    tinker_cookbook       => tinker
    chz                   => tinker
    safetensors           => engines
    transformers          => lab predictors trl verl
    trl                   => trl
    axolotl               => trl
    accelerate            => trl
    verl                  => verl
    ray                   => verl
    hydra                 => verl
    omegaconf             => verl
    tensordict            => verl
    transfer_queue        => verl
    psutil                => verl
    sklearn               =>
    pandas                =>
    matplotlib            =>
    typer                 => cli
    rich                  => runs vote
    filelock              => runs
    pydantic              => config trl
    tomli_w               => toml
    sentence_transformers => predictors
    pyarrow               => rows records lab verl
    openai                => endpoint
    httpx                 =>
    starlette             => gateway
    uvicorn               => gateway
    math_verify           => answers
    datasets              => engines
    areal                 => engines
    skyrl                 => engines
    slime                 => engines
""")
}
"""Who may import what is not among the core's requirements.

axolotl reads a plugin's settings by a model of pydantic.
"""


@cache
def tree_of(path):
    """Return the source of a file as a tree of Python 3.11. Several rules read each of them."""
    return ast.parse(path.read_text(), path.name, feature_version=(3, 11))


def part(module):
    return [*module.split("."), ""][1]


def rank(module):
    ranks = [place for place, parts in enumerate(ORDER) if part(module) in parts]
    assert ranks, f"{module} has no place in ORDER; say there where it stands"
    return ranks[0]


def room(module):
    """The folder, or the file, of the lab that ``module`` is in."""
    return [*module.split("."), ""][2]


@cache
def imported(module):
    """Everything that ``module`` imports, anywhere in its source; of a ``from``, the submodule if it is one."""
    found = set()
    for node in ast.walk(tree_of(SOURCES[module])):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module} imports relatively; write the module's full name"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in SOURCES else node.module for name in names}
    return frozenset(found)


def own(module):
    return imported(module) & SOURCES.keys()


def comes_later(module, name):
    return name in MODULES and part(name) != part(module) and rank(name) >= rank(module)


def comes_later_in_the_lab(module, name):
    return part(module) == part(name) == "lab" and name in MODULES and LAB.index(room(name)) > LAB.index(room(module))


def is_optional_and_not_for_this_part(module, name):
    library = name.split(".")[0]
    return library in ALLOWED and part(module) not in ALLOWED[library]


def is_for_the_modules_around_the_coordinator(module, name):
    outside = name.split(".")[0] in ALLOWED or name.startswith("apportion.verl.")
    return module.startswith(COORDINATOR) and outside and not name.startswith(COORDINATOR)


FORBIDDEN = (
    comes_later,
    comes_later_in_the_lab,
    is_optional_and_not_for_this_part,
    is_for_the_modules_around_the_coordinator,
)
"""Rules about a module and a name that it imports, each of which forbids some."""


def test_no_module_imports_what_it_must_not():
    wrong = [
        f"{module} imports {name}, which {rule.__name__}"
        for module in MODULES
        for name in imported(module)
        for rule in FORBIDDEN
        if rule(module, name)
    ]
    assert not wrong


def test_no_modules_import_each_other():
    TopologicalSorter({module: own(module) for module in SOURCES}).prepare()


def test_no_two_public_classes_share_a_name():
    homes = {}
    for module, path in MODULES.items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in homes.items() if len(modules) > 1}


RUNS_CODE = {
    "eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads", "pickle.Unpickler", "cPickle.load",
    "dill.load", "dill.loads", "joblib.load", "cloudpickle.load", "cloudpickle.loads", "marshal.load", "marshal.loads",
    "shelve.open", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "pd.read_pickle", "pandas.read_pickle",
    "import_module", "importlib.import_module", "exec_module", "spec_from_file_location", "runpy.run_path",
}  # fmt: skip
"""What can run code that a file names."""

MAY_RUN_CODE = dict(
    lines("""
    apportion/user_functions.py     => imports the function that the user's configuration names, and nothing else
    apportion/verl/reports.py       => unpickles what a run's own workers return to calls of Ray
    apportion/cli/errors.py         => imports one of our own modules, by a name in the source
    apportion/cli/lab.py            => imports one of our own modules, by a name in the source
    apportion/verl/__init__.py      => imports one of our own modules, by a name in the source
    apportion/trl/__init__.py       => imports one of our own modules, by a name in the source
    apportion/runs/children.py      => unpickles what its own parent process sends through a pipe
    apportion/endpoint/http.py      => imports the HTTP library that openai itself imports
    examples/score_rules.py         => runs the file of rules that the user names on the command line
    benchmarks/evidence/registry.py => imports one of our own modules, by a name in the source
""")
)
"""The only modules that may use one of ``RUNS_CODE``, and why no file decides what it runs there."""


def code_runners(tree):
    """Yield each use of ``RUNS_CODE`` in ``tree``, and each load of torch or numpy that may unpickle."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from {f"{node.module}.{each.name}" for each in node.names} & RUNS_CODE
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in RUNS_CODE:
            yield ast.unparse(node)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            given = {each.arg: ast.unparse(each.value) for each in node.keywords}
            if name in RUNS_CODE or name.rpartition(".")[2] == "exec_module":
                yield name
            elif name == "torch.load" and given.get("weights_only") != "True":
                yield "torch.load without weights_only=True"
            elif given.get("allow_pickle", "False") != "False":
                yield f"{name} with allow_pickle"
            elif given.get("trust_remote_code", "False") == "True":
                yield f"{name} with trust_remote_code"


def test_what_runs_code_is_found_and_what_does_not_is_left_alone():
    sources = """
        eval('1')
        import pickle; pickle.load(file)
        from pickle import loads
        torch.load(path)
        torch.load(path, weights_only=False)
        np.load(path, allow_pickle=True)
        yaml.load(text)
        Model.from_pretrained(name, trust_remote_code=True)
        class Reader(pickle.Unpickler): pass
        spec.loader.exec_module(module)
    """
    assert not [line for (line,) in lines(sources) if not list(code_runners(ast.parse(line)))]
    harmless = "torch.load(path, weights_only=True)\nnp.load(path)\nmodel.eval()"
    assert not list(code_runners(ast.parse(harmless)))


def test_nothing_that_is_loaded_runs_code():
    """Saved states go through ``engines.saved_state``; the exceptions are listed with their reasons."""
    found = {path.relative_to(ROOT).as_posix(): sorted(set(code_runners(tree_of(path)))) for path in SOURCES.values()}
    used = {path: names for path, names in found.items() if names}
    assert used.keys() == MAY_RUN_CODE.keys(), {path: used[path] for path in used.keys() - MAY_RUN_CODE.keys()}


def test_importing_the_package_is_light_and_quick(tmp_path):
    """It loads numpy and nothing heavier, and takes at most four times as long as numpy, beside which it is timed."""
    heavy = {*ALLOWED, "scipy", "asyncio", "numpy.random", "ssl"}
    code = (
        "import sys, time; started = time.process_time(); import numpy; middle = time.process_time()\n"
        "import apportion; ended = time.process_time()\n"
        f"print((ended - middle) / (middle - started), *({heavy!r} & sys.modules.keys()))"
    )
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": tmp_path}  # by the first of these runs
    least = float("inf")
    for run in range(6):
        ratio, *found = cold("-c", code, **compiled).stdout.split()
        assert not found, f"import apportion imports {found}"
        least = min(least, float(ratio)) if run else least
        if least <= 4:
            return
    raise AssertionError(f"import apportion takes as long as {least} imports of numpy")


def test_every_public_name_is_documented():
    bare = []
    for module, path in MODULES.items():
        tree = tree_of(path)
        bare += [] if ast.get_docstring(tree) else [module]
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name[0] != "_":
                bare += [] if ast.get_docstring(node) else [f"{module}.{node.name}"]
    assert not bare, "write a docstring"


def test_every_toml_file_can_be_loaded():
    skipped = {"runs", "build", "dist"}
    for path in ROOT.rglob("*.toml"):
        folders = path.relative_to(ROOT).parts[:-1]
        if path != ROOT / "pyproject.toml" and not any(name.startswith(".") or name in skipped for name in folders):
            assert load(path, []), f"{path} is empty"


def test_the_readme_is_short():
    readme = (ROOT / "README.md").read_text()
    lines = [line for line in readme.splitlines() if not line.startswith("| ")]  # a row of a table cannot be wrapped
    assert len(readme.split()) <= 700 and max(map(len, lines)) <= 140


def test_results_are_light():
    """Tables and headline numbers are committed; raw cells are not."""
    assert sum(path.stat().st_size for path in (ROOT / "benchmarks" / "results").glob("*.json")) <= 300_000
