"""Functions of the user, found by the name that a configuration gives: "module:function" or "path/to/file.py:function".

Importing a module runs its code, so only the user's own configuration may name one, never a file that was downloaded.
"""

from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any


def import_named(where: str) -> Any:
    """Return the object that ``where`` names; None if its module does not have it.

    Raises ValueError if the module does not exist, and whatever importing it raises.

    >>> import_named("math:sqrt")(4)
    2.0
    """
    place, colon, name = where.rpartition(":")
    if not colon or not place or not name:
        raise ValueError(f'function must be "module:function" or "file.py:function", got {where!r}; name both')
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    return getattr(module, name, None)


def _import_module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but something that it imports does not
        raise ValueError(
            f"function must be in a module that can be imported, got {name!r}; install it, or give file.py:function"
        ) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"function must be in a file that exists, got {str(path)!r}; check the path")
    spec = spec_from_file_location(f"apportion_user_{path.stem}", path.resolve())
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
