"""The public names of the package, as ``module:name``, and those of the members of its classes, ``module:Class.name``.

A name is public if it is in an ``__all__`` or on a page of the reference. ``python -m tests.public_names`` prints them.
With ``--write`` it writes them to ``golden/public_names.txt``, so that a commit shows which names it changes.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests" / "golden" / "public_names.txt"
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def public_names():
    """Return the public names of the package, read from its source."""
    trees = trees_of(ROOT)
    names = {*listed(trees), *shown(trees)}
    found = set(names)
    for name in names:
        node = class_of(*name.split(":"), trees)
        found |= {f"{name}.{member}" for member in members_of(node)} if node else set()
    return found


def class_of(module, name, trees):
    """Return the class that ``name`` is in ``module``, where it may be imported; None if it is something else."""
    body = trees[module].body if module in trees else []
    for node in (*body, *(node for each in body if isinstance(each, ast.If) for node in each.body)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                if (each.asname or each.name) == name:
                    return class_of(node.module, each.name, trees)
    return None


def recorded_names():
    return RECORD.read_text().split()


def trees_of(root):
    """Return the source of each module of the package in ``root``."""
    paths = {path.relative_to(root).with_suffix(""): path for path in (root / "apportion").rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__init__"): ast.parse(path.read_text()) for name, path in paths.items()}


def listed(trees):
    """Yield every name of an ``__all__``."""
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                yield from (f"{module}:{name}" for name in ast.literal_eval(node.value))


def shown(trees):
    """Yield every name on a page of the reference that ``trees`` define. A page may show a whole module."""
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for path in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE):
            module, _, own = path.rpartition(".")
            if path in trees:
                yield from (f"{path}:{name}" for name in defined(trees[path].body) if name[0] != "_")
            elif module in trees and own in defined(trees[module].body):
                yield f"{module}:{own}"


def defined(body):
    """Return the names of functions, classes and annotated or plain variables."""
    found = [node.name for node in body if isinstance(node, DEFINITIONS)]
    found += [node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    plain = [each for node in body if isinstance(node, ast.Assign) for each in node.targets]
    return found + [each.id for each in plain if isinstance(each, ast.Name)]


def members_of(node):
    return (name for name in defined(node.body) if name[0] != "_")


def main(arguments):
    """Print the names, or write them into the record."""
    text = "\n".join(sorted(public_names())) + "\n"
    if "--write" in arguments:
        RECORD.write_text(text)
    else:
        print(text, end="")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
