"""What code a cell reaches: the functions, classes and constants of this repository that its value depends on.

``reached`` follows names from the cell's function through modules and imports, in the syntax tree, without running
anything. A method of a class that is reached counts if its name is an attribute or a string in anything that is
reached, or if the class has a base of another package, which may call it. So the answer errs on the side of too much.
Three things do not count, because no value depends on them: docstrings and comments, the messages of errors, warnings
and logs, and the file that a definition is in.

A rule that is chosen by its name, as ``{"name": "vip"}``, is reached if its name is among the strings of what is
reached. A registry is a table that a comprehension makes from a tuple of classes or functions.
"""

from __future__ import annotations

import ast
import hashlib
import subprocess
import tarfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("apportion", "benchmarks", "tests/benchmarks")
UNCOUNTED = frozenset(
    f"benchmarks.{each}" for each in ("common", "evidence.cell", "evidence.reach", "evidence.claim")
) | {"apportion.untrusted", "apportion.messages"}
"""Modules that write values down, or words."""
LOGS = ("logger", "logging", "log", "warnings")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FORMULAS = tuple(f"apportion/{room}" for room in ("allocators", "advantages", "baselines", "predictors", "stopping"))
"""Rooms with what the papers define."""
PLAIN_BASES = {"Protocol", "Generic", "ABC", "NamedTuple", "StrEnum", "TypedDict", "ValueError", "RuntimeError"}
"""Bases of other packages that call no method by a name of its own."""
LEFT_OUT = ("ctx", "kind", "type_comment", "type_params", "returns", "lineno")

Sources = Mapping[str, str]
"""The text of every Python file, by its path in the repository."""
Place = tuple[str, str]
"""A module and a name in it."""


def working_tree(root=ROOT):
    """Return the sources as they are on the disk."""
    files = (path for room in ROOMS for path in sorted((root / room).rglob("*.py")))
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in files}


def at_commit(commit, root=ROOT):
    """Return the sources of a commit. Raises CalledProcessError if git does not have it."""
    packed = subprocess.run(["git", "archive", commit, *ROOMS], cwd=root, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as found:
        members = [each for each in found.getmembers() if each.name.endswith(".py")]
        return {each.name: found.extractfile(each).read().decode() for each in members}


class _WithoutWords(ast.NodeTransformer):
    """Removes what no value depends on: docstrings, annotations of functions, imports, and messages."""

    def visit_Expr(self, node):
        value = node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return None
        called = value.func if isinstance(value, ast.Call) else None
        said = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in LOGS
        return ast.Pass() if said else self.generic_visit(node)

    def visit_Raise(self, node):
        kind = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return ast.Raise(exc=kind, cause=None)

    def visit_Assert(self, node):
        return self.generic_visit(ast.Assert(test=node.test, msg=None))

    def visit_arg(self, node):
        return ast.arg(arg=node.arg)

    def visit_FunctionDef(self, node):
        node.returns = None
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node):
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_Import(self, node):
        return None

    visit_ImportFrom = visit_Import


@dataclass
class Module:
    """The definitions of a module by name, without words, and what it imports: name to module and name there."""

    definitions: dict[str, list[ast.AST]] = field(default_factory=lambda: defaultdict(list))
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, text):
        found, tree = cls(), ast.parse(text)
        for node in ast.walk(tree):
            found._note_import(node)
        for node in _statements(_WithoutWords().visit(tree).body):
            for name in _names_of(node):
                found.definitions[name].append(node)
        return found

    def _note_import(self, node):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for each in node.names:
                self.imports[each.asname or each.name] = (node.module, each.name)
        elif isinstance(node, ast.Import):
            for each in node.names:
                name = each.asname or each.name.split(".")[0]
                self.imports[name] = (each.name if each.asname else name, None)


def _statements(body):
    """Yield the statements of a module, those of its conditions and attempts among them, but for a script's last."""
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            continue
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)
        else:
            yield node


def _names_of(node):
    """Return the names that a statement of a module defines; the others are of the module itself, ""."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    return [] if isinstance(node, ast.Pass) else [""]


@dataclass(frozen=True)
class Definition:
    """What a function, a constant or a class without its methods depends on.

    Args:
        hash: of its syntax tree without words.
        uses: what it names.
        words: its strings and attributes.
        optional: what counts if a word is among those of all that is reached: methods, and entries of a registry.
    """

    hash: str
    uses: tuple[Place, ...]
    words: frozenset[str]
    optional: tuple[tuple[str, Place], ...]


class Code:
    """Sources, parsed as they are needed. ``reached`` finds what a function depends on."""

    def __init__(self, sources):
        self.sources = sources
        self._modules: dict[str, Module | None] = {}
        self._definitions: dict[Place, Definition] = {}

    def module(self, name):
        """Return a module of the sources by its dotted name, or None."""
        if name not in self._modules:
            path = name.replace(".", "/")
            text = self.sources.get(f"{path}.py", self.sources.get(f"{path}/__init__.py"))
            self._modules[name] = None if text is None or name in UNCOUNTED else Module.of(text)
        return self._modules[name]

    def find(self, module, name):
        """Return where ``name`` of a module is defined; the name is "" if it is a module itself."""
        found = self.module(module)
        if found and name in found.definitions:
            return module, name
        source, there = found.imports.get(name, (module, name)) if found else (module, name)
        if there is None:
            return (source, "") if self.module(source) else None
        if source != module and (inside := self.find(source, there)):
            return inside
        return (f"{source}.{there}", "") if self.module(f"{source}.{there}") else None

    def home(self, function, module):
        """Return the module that defines a function: ``module``, or the only one of the benchmarks that has it."""
        own = self.module(module)
        if own and function in own.definitions:
            return module
        names = [path[:-3].replace("/", ".") for path in self.sources if path.startswith("benchmarks/")]
        having = [name for name in names if (each := self.module(name)) and function in each.definitions]
        same = [name for name in having if name.rsplit(".")[-1] == module.rsplit(".")[-1]]
        return (same or having)[0] if len(same or having) == 1 else None

    def reached(self, roots, words, rooms=ROOMS):
        """Return the hash of each definition in ``rooms`` that the ``roots`` depend on, by its name: ``VIP.plan``.

        ``words`` are the strings of the cell's arguments, for the rules that are chosen by name.
        """
        seen, waiting, words = set[Place](), list(roots), set(words)
        counted = tuple(room.replace("/", ".") for room in rooms)
        optional: dict[str, list[Place]] = defaultdict(list)
        found: dict[str, set[str]] = defaultdict(set)
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            own = self._definition(place)
            if own.hash and place[0].startswith(counted):
                found[place[1] or "statements"].add(own.hash)
            new = own.words - words
            words |= new
            waiting += own.uses
            for name, there in own.optional:
                if name in words:
                    waiting.append(there)
                else:
                    optional[name].append(there)
            for name in new & optional.keys():
                waiting += optional.pop(name)
        return {name: "".join(sorted(each)) for name, each in sorted(found.items())}

    def _definition(self, place):
        if place not in self._definitions:
            self._definitions[place] = self._read(*place)
        return self._definitions[place]

    def _read(self, module, name):
        own = self.module(module)
        nodes = own.definitions.get(name, []) if own else []
        entries = self._registered((module, name))
        if entries:  # its own text does not count, or another rule would outdate every value
            return Definition("", (), frozenset(), tuple(entries))
        methods = {}
        if len(nodes) == 1 and isinstance(nodes[0], ast.ClassDef):
            (node,) = nodes
            methods = {each.name: each for each in node.body if isinstance(each, FUNCTIONS)}
            rest = [each for each in node.body if not isinstance(each, FUNCTIONS)]
            nodes = [ast.ClassDef(node.name, node.bases, node.keywords, rest, node.decorator_list)]
            for each in methods.values():  # a method becomes a definition of the module
                own.definitions[f"{name}.{each.name}"] = [each]
        uses = {found for node in nodes for found in self._used(module, node)}
        foreign = any(self._is_foreign(module, base) for node in nodes for base in getattr(node, "bases", []))
        always = {(module, f"{name}.{each}") for each in methods if foreign or each.startswith("__")}
        others = [(each, (module, f"{name}.{each}")) for each in methods if not (foreign or each.startswith("__"))]
        words = {word for node in nodes for word in _words(node)}
        text = "".join(map(_written, nodes))
        hashed = hashlib.sha256(text.encode()).hexdigest()[:8] if nodes else ""
        return Definition(hashed, (*sorted(uses | always), (module, "")), frozenset(words), tuple(others))

    def _is_foreign(self, module, base):
        """Return whether a base class is of another package, and calls the methods of its subclasses."""
        own = base.value if isinstance(base, ast.Subscript) else base
        return self._place(module, own) is None and ast.unparse(own).split(".")[-1] not in PLAIN_BASES

    def _registered(self, place):
        """Return the entries of a registry, each with the name that chooses it. Empty for any other definition."""
        nodes = self.module(place[0]).definitions.get(place[1], [])
        made = getattr(nodes[0], "value", None) if len(nodes) == 1 else None
        if not (isinstance(made, ast.DictComp) and isinstance(made.generators[0].iter, ast.Tuple)):
            return []
        entries = []
        for each in made.generators[0].iter.elts:
            found = self.find(place[0], each.id) if isinstance(each, ast.Name) else None
            if found is None:
                return []
            entries.append((self._called(found), found))
        return entries

    def _called(self, place):
        """Return the name by which a registry has a class: its attribute ``name``, or its own."""
        (node, *_) = self.module(place[0]).definitions[place[1]]
        for each in getattr(node, "body", []):
            value = getattr(each, "value", None)
            if _names_of(each) == ["name"] and isinstance(value, ast.Constant):
                return str(value.value)
        return place[1]

    def _used(self, module, node):
        """Yield what a definition uses: names, and attributes of modules."""
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute):
                base = self._place(module, each.value)
                if base and not base[1] and (found := self.find(base[0], each.attr)):
                    yield found
            elif isinstance(each, ast.Name) and (found := self.find(module, each.id)):
                yield found

    def _place(self, module, node):
        if isinstance(node, ast.Name):
            return self.find(module, node.id)
        if isinstance(node, ast.Attribute) and (base := self._place(module, node.value)) and not base[1]:
            return self.find(base[0], node.attr)
        return None


def of_call(code, call, rooms=ROOMS):
    """Return what a function or a ``partial`` reaches; nothing if ``code`` does not have the function."""
    call = call if isinstance(call, partial) else partial(call)
    roots, words = [], set[str]()
    for each in _flat([call.func, call.args, call.keywords]):
        if isinstance(each, str):
            words.add(each)
        elif callable(each):
            name = each.__qualname__.split(".")[0]
            home = code.home(name, each.__module__)
            if home is None:
                return {}
            roots.append((home, name))
    return code.reached(roots, words, rooms)


def key_of(reach, call):
    """Return one hash of what a cell reaches and of the arguments that it is given."""
    call = call if isinstance(call, partial) else partial(call)
    given = [getattr(each, "__qualname__", each) for each in _flat([call.args, call.keywords])]
    return hashlib.sha256(repr([sorted(reach.items()), given]).encode()).hexdigest()[:16]


def _flat(value):
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from (key, *_flat(each))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _words(node):
    """Yield the strings and the attributes in a definition: by them rules are chosen and methods are called."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _written(value):
    """Return a syntax tree as text that is the same for every version of Python."""
    if isinstance(value, ast.AST):
        kept = ((key, each) for key, each in ast.iter_fields(value) if key not in LEFT_OUT and each not in (None, []))
        return f"{type(value).__name__}({','.join(f'{key}={_written(each)}' for key, each in kept)})"
    return f"[{','.join(map(_written, value))}]" if isinstance(value, list) else repr(value)
