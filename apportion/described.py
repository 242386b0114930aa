"""What docstrings say of the fields of a dataclass, for every place that shows settings to a user."""

import re
from inspect import cleandoc
from typing import Any

SECTION = re.compile(r"\n(?:Args|Attributes):\n")
ENTRY = re.compile(r"\n {4}(?! )")


def described_fields(cls: type[Any]) -> dict[str, str]:
    """Return what docstrings say of each field of ``cls``, under Args or Attributes, on one line.

    A field that the docstring of ``cls`` leaves out has the sentence of the nearest base class.

    Raises ValueError for an entry that names several fields, because each must have a sentence of its own.

    >>> from apportion.allocators import Even
    >>> described_fields(Even)["high"]
    'The most rollouts of one prompt.'
    """
    described: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        described |= _own_fields(base)
    return described


def _own_fields(cls: type[Any]) -> dict[str, str]:
    """Return what the docstring of ``cls`` itself says of fields."""
    sections = SECTION.split(cleandoc(vars(cls).get("__doc__") or ""), maxsplit=1)[1:]
    described: dict[str, str] = {}
    for entry in (entry for section in sections for entry in ENTRY.split("\n" + section.partition("\n\n")[0])[1:]):
        name, _, text = entry.partition(": ")
        if not name.strip().isidentifier():
            raise ValueError(
                f"an entry in the docstring of {cls.__name__} must be of one field, got {name.strip()!r}; give each a "
                "sentence of its own"
            )
        text = " ".join(text.replace("``", "").split())
        described[name.strip()] = text[:1].upper() + text[1:]
    return described
