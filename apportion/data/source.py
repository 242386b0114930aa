"""The table ``data`` of a job's configuration: which questions it takes, and how it asks them."""

from dataclasses import dataclass
from pathlib import Path

from apportion.checks import choices
from apportion.data.named import NAMED, NamedSet
from apportion.data.templates import TEMPLATES, Template, make_template
from apportion.tables import SUFFIXES
from apportion.verifiers import VERIFIERS
from apportion.verifiers.base import Verifier


@dataclass(frozen=True)
class Data:
    """Questions from a named set, a file, or a data set of the hub. A named set may be read from a file.

    Attributes:
        name: one of ``NAMED``.
        path: a .csv, .jsonl or .parquet file.
        hub: the id of a data set on the hub. ``subset`` and ``split`` are those of the hub.
        prompt_column: the column of prompts. The default is that of the set, else as in ``read_questions``.
        answer_column: the column of gold answers, with the same default.
        rate_column: a column of success rates known before training, within [0, 1], such as the pass rate of another
            model; empty if unknown.
        template: one of ``TEMPLATES``, or a text with ``{question}``. The default is the set's, else "boxed".
        limit: maximum number of questions.
        seed: shuffles the questions before the cut. The order does not depend on the order of the rows.

    >>> Data(name="aime24", limit=10).chosen_template.name
    'boxed'
    >>> Data(path=Path("sums.jsonl"), template="Q: {question}").chosen_template.user
    'Q: {question}'
    """

    name: str | None = None
    path: Path | None = None
    hub: str | None = None
    subset: str | None = None
    split: str | None = None
    prompt_column: str | None = None
    answer_column: str | None = None
    rate_column: str | None = None
    template: str | None = None
    limit: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        given = [key for key in ("name", "path", "hub") if getattr(self, key) is not None]
        if len(given) != 1 and given != ["name", "path"]:
            raise ValueError(
                f"data must have one of name, path and hub, got {' and '.join(given) or 'none'}; "
                "give one, or the name of a set with the path of its file"
            )
        if self.name is not None and self.name not in NAMED:
            raise ValueError(f"name must be a known set, got {self.name!r}; {choices(self.name, NAMED)}")
        if self.path is not None and (self.subset is not None or self.split is not None):
            raise ValueError(f"subset and split are for the hub, got them with the file {self.path}; leave them out")
        for key, file in (("path", self.path), ("hub", self.hub)):
            if file is not None and (key == "path") != (Path(file).suffix.lower() in SUFFIXES):
                other, what = ("hub", f"end in {', '.join(SUFFIXES)}") if key == "path" else ("path", "not be a file")
                raise ValueError(f"{key} must {what}, got {str(file)!r}; correct it, or give it as {other}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1, got {self.limit}; leave it out for all questions")
        self.chosen_template  # noqa: B018 - an unknown template should be known now

    @property
    def named_set(self) -> NamedSet | None:
        """The named set; None for other sources."""
        return None if self.name is None else NAMED[self.name]

    @property
    def chosen_template(self) -> Template:
        """The template by which questions are asked."""
        if self.template is not None:
            return make_template(self.template)
        return TEMPLATES[self.named_set.template if self.named_set else "boxed"]

    def make_verifier(self, verifier: Verifier | None = None) -> Verifier:
        """Return ``verifier``, by default that of the named set, else math, with the template's extractor.

        >>> Data(name="gpqa").make_verifier(), Data(name="dapo_math_17k").make_verifier()
        (Choice(), Math(extract='answer_line', timeout_seconds=5.0))
        """
        chosen = VERIFIERS[self.named_set.verifier if self.named_set else "math"]() if verifier is None else verifier
        return chosen.with_extractor(self.chosen_template.extractor)
