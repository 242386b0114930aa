"""The YAML of ``conf``: for each allocator, predictor and rule all that can be set, from the dataclasses themselves.

``python -m apportion.integrations.verl.configs`` writes the files anew; a test compares.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from inspect import cleandoc
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from omegaconf import OmegaConf

from apportion.allocators import ALLOCATORS
from apportion.consensus import LABEL_FREE
from apportion.integrations.verl.settings import PER_PROMPT, Allocation
from apportion.predictors import PREDICTORS, Embedder, SentenceTransformerEmbedder
from apportion.stopping import RULES

FOLDER = Path(__file__).parent / "conf"
GROUP = "allocation"
"""The group of Hydra's configurations, and the key in verl's that they are read under."""

PROMPT_ROLLOUTS = "${actor_rollout_ref.rollout.n}"
EACH = "rollouts of each prompt: by default as many as verl draws without an allocator."
BUDGETED = f"{EACH.replace('of each', 'per')} Null where the budget is given by another key."
MADE = "Written by python -m apportion.integrations.verl.configs; what it says is in the dataclasses."
WIDTH = 100


@dataclass(frozen=True)
class Part:
    """What is chosen within an allocator by a group of its own, ``allocation/{name}``: the ``field`` and its kinds."""

    name: str
    field: str
    kinds: Mapping[str, Any]

    @property
    def group(self) -> str:
        """The group, as it is chosen on the command line."""
        return f"{GROUP}/{self.name}"

    @property
    def place(self) -> str:
        """The key under which its settings are."""
        return f"{GROUP}.allocator.{self.field}"


def usable(kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``kinds`` that can be had in verl, which does not compute the score norms of rollouts."""
    return {name: kind for name, kind in kinds.items() if not _needs_score_norms(kind)}


def _needs_score_norms(kind: Any) -> bool:
    required = any(_default(field, None) == "???" for field in fields(kind) if field.init)
    return not required and bool(getattr(kind(), "needs_score_norms", False))


def files() -> dict[str, str]:
    """The text of each file, by its path under ``conf``."""
    found = {f"{GROUP}/{name}.yaml": _allocation(kind) for name, kind in CHOICES.items()}
    for part in PARTS:
        for name, kind in part.kinds.items():
            head = [f"# @package {part.place}", *_comment(_about(kind))]
            found[f"{part.group}/{name}.yaml"] = _text([*head, _fields(kind)])
    return found


def write() -> None:
    """Writes the files, and takes out those that are none of them."""
    texts = files()
    for path in (FOLDER / GROUP).rglob("*.yaml"):
        if path.relative_to(FOLDER).as_posix() not in texts:
            path.unlink()
    for name, text in texts.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(text)


def _allocation(kind: Any) -> str:
    """The file of an allocator: its settings, then the others of ``Allocation``."""
    own = {field.name: field for field in fields(kind)}
    parts = [part for part in PARTS if part.field in own]
    lines = [*_comment(_about(kind)), *_comment(MADE), "", "defaults:", "  - _self_"]
    for part in parts:
        default = _default(own[part.field], None).name
        lines += [
            *_comment(f"{part.group}=NAME takes another, with all its settings.", "  "),
            f"  - {part.name}: {default}",
        ]
    nested = textwrap.indent(_fields(kind, leave_out={part.field for part in parts}), "  ")
    return _text(
        [
            *lines,
            "",
            *_comment(_said(Allocation, "allocator")),
            "allocator:",
            nested,
            "",
            _fields(Allocation, leave_out={"allocator"}),
        ]
    )


def _fields(kind: Any, instance: Any = None, leave_out: Iterable[str] = ()) -> str:
    """The settings of the dataclass ``kind`` as they are in ``instance``, or by default; each below what it is."""
    hints = get_type_hints(kind, include_extras=True)
    lines = [f"name: {kind.name}"] if hasattr(kind, "name") else []
    for field in fields(kind):
        if not field.init or field.name in leave_out:
            continue
        value = _default(field, hints[field.name]) if instance is None else getattr(instance, field.name)
        said = _said(kind, field.name)
        if field.name == PER_PROMPT:
            value = PROMPT_ROLLOUTS
            said = BUDGETED if "budget" in hints else EACH
        lines += _comment(" ".join(filter(None, [said, _one_of(hints[field.name], said)])))
        if is_dataclass(value):
            lines += [f"{field.name}:", textwrap.indent(_fields(type(value), value), "  ")]
        else:
            lines.append(OmegaConf.to_yaml({field.name: value}).rstrip("\n"))
    return "\n".join(lines)


def _default(field: Field[Any], hint: Any) -> Any:
    """The default of ``field``; "???", Hydra's word for what must be given, where there is none."""
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    return SentenceTransformerEmbedder() if hint is Embedder else "???"


def _about(kind: Any) -> str:
    """The first paragraph of the docstring."""
    return " ".join(_plain(kind.__doc__).split("\n\n")[0].split())


def _said(kind: Any, name: str) -> str:
    """The first sentence on the argument ``name``, from the class or from one that it comes from; "" without any."""
    for each in kind.__mro__:
        listed = _plain(each.__dict__.get("__doc__") or "").partition("Args:\n")[2].split("\n\n")[0]
        for entry in re.split(r"\n(?! {8})", f"\n{textwrap.indent(textwrap.dedent(listed), '    ')}"):
            names, _, text = entry.strip().partition(": ")
            if name in names.split(", "):
                return re.split(r"(?<=\.) ", " ".join(text.split()))[0]
    return ""


def _plain(docstring: str) -> str:
    return cleandoc(docstring).replace("``", "")


def _one_of(hint: Any, said: str) -> str:
    """What there is to choose from, where it is words and not all are in what is ``said``; "" elsewhere."""
    words = get_args(hint) if get_origin(hint) is Literal else ()
    return "" if all(str(word) in said for word in words) else f"One of {', '.join(map(str, words))}."


def _comment(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


CHOICES = usable(ALLOCATORS | LABEL_FREE)
"""The allocators, by name."""

PARTS = (
    Part("predictor", "predictor", usable(PREDICTORS)),
    Part("rule", "rule", RULES),
    Part("inner", "allocator", {name: kind for name, kind in usable(ALLOCATORS).items() if name != "select"}),
)

if __name__ == "__main__":
    write()
