"""What a vote has on disk: every sample, every finished question, and the settings.

``answers.jsonl`` has a line for each finished question. ``answers.samples.jsonl`` has a line for each sample, written
as soon as it arrives. ``answers.run.json`` has the settings. A run may die at any moment: the next one cuts torn last
lines and uses all samples. A lock beside the files allows one run at a time.
"""

import json
from collections.abc import Container, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from apportion.answers.extraction import Extractor
from apportion.runs.folder import check_settings, hold_lock
from apportion.runs.whole_files import is_file, write_whole
from apportion.toml import ConfigError
from apportion.untrusted import parse_json, read_config, shown
from apportion.vote.ballot import Ballot, total
from apportion.vote.lines import JournalError, LineWriter, read_records, remove_if_possible, unwritable
from apportion.vote.sample import Sample
from apportion.vote.setup import Setup, is_about_counting

MAY_CHANGE = ("apportion", "base_url")
"""Settings that another run may change: a newer version, or the same model served at another address."""

Samples = Mapping[int, Sample]
"""The samples of one question by their numbers, without their texts."""


class Journal:
    """The answers at ``path``, continued under the settings of ``setup``, or begun again with ``overwrite``.

    ``ballots`` are the finished questions by id, and ``samples`` are those of the other questions. If ``setup`` counts
    the samples in another way than before, ``resume`` must be set. Then no question is finished, and ``samples`` holds
    those of all questions, so that they are counted again.

    Raises JournalError, and changes nothing, if another run has the file open, if it was started with settings that
    gave other samples, or if it holds something other than answers.
    """

    def __init__(self, path: Path, setup: Setup, *, overwrite: bool = False, resume: bool = False) -> None:
        if overwrite and resume:
            raise JournalError("resume must be left out with overwrite, which deletes what resume counts; choose one")
        check_path(path)
        self.path = path
        with ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(path.with_suffix(".lock")))
            except BlockingIOError as error:
                raise JournalError(
                    f"one run writes to a file at a time, got {path}, which another has open; wait, or change the path"
                ) from error
            except OSError as error:
                raise unwritable(path, error) from error
            if overwrite:
                next(_ballots(path), None)  # if the first line is something else, the file may be the questions
                next(_samples(path), None)
                found = VoteRecord()
            else:
                found = read_finished(path, setup, resume)
            self.ballots, self.samples = found.ballots, found.samples
            stack.callback(self._remove_settings_of_nothing)
            self._samples = LineWriter(samples_path(path), found.sample_bytes, "a sample")
            stack.callback(self._samples.close)
            self._answers = LineWriter(path, found.answer_bytes, "an answer")
            stack.callback(self._answers.close)
            if not found.answer_bytes:
                _write_settings(settings_path(path), setup.resolved())
            self._stack = stack.pop_all()

    def keep(self, sample: Sample) -> None:
        """Write one sample. It survives the end of this process."""
        self._samples.append(sample.to_json(), to_disk=False)

    def append(self, *ballots: Ballot) -> None:
        """Write finished questions, and return when they and their samples are on the disk. ``keep`` may run beside."""
        for ballot in ballots:
            if ballot.id in self.ballots:
                said = f"a question is written once, got {ballot.id!r} again for {self.path}; drop the second"
                raise JournalError(said)
        self._samples.flush()
        self._answers.append("\n".join(ballot.to_json() for ballot in ballots), to_disk=True)
        self.ballots.update({ballot.id: ballot for ballot in ballots})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _remove_settings_of_nothing(self) -> None:
        if not (self.path.exists() or samples_path(self.path).exists()):
            remove_if_possible(settings_path(self.path))


@dataclass(frozen=True)
class VoteRecord:
    """The content of the files: ballots and samples by question, and each file's size up to its last whole line."""

    ballots: dict[str, Ballot] = field(default_factory=dict)
    samples: dict[str, Samples] = field(default_factory=dict)
    answer_bytes: int = 0
    sample_bytes: int = 0

    @property
    def ids(self) -> list[str]:
        """All questions with samples or a ballot. A ballot whose samples were lost has none in ``samples``."""
        return list(dict.fromkeys([*self.samples, *self.ballots]))

    def stream(self, id: str) -> list[str | None]:
        """Return the answers to a question in sampling order, None without one, up to the first missing sample."""
        found = self.samples.get(id, {})
        return [found[number].answer for number in takewhile(found.__contains__, count())]


def read_finished(path: Path, setup: Setup, resume: bool = False) -> VoteRecord:
    """Return what another run may continue with: ballots, and the samples of questions without one.

    It is nothing if there is no file. Take no lock and change nothing. Raises JournalError as ``Journal`` does.
    """
    check_path(path)
    ballots, answer_bytes = _read_ballots(path)
    if not ballots and next(_samples(path), None) is None:
        return VoteRecord()
    started, settings = read_started(path), setup.resolved()
    _check_same(path, _sampled(started), _sampled(settings), "use the same settings, choose another file, or overwrite")
    again, must_read = False, started.get("extract") != settings["extract"]
    if ballots:
        try:
            _check_same(path, started, settings, "resume to count its samples again, or choose another file")
        except JournalError:
            if not resume:
                raise
            again = True
    samples, sample_bytes = _read_samples(path, () if again else ballots, setup.extractor, must_read)
    if again:
        for id, ballot in ballots.items():
            if len(samples.get(id, ())) < ballot.samples:
                raise JournalError(
                    f"{samples_path(path)} must hold the samples of every question to count them again, got "
                    f"{len(samples.get(id, ()))} of {ballot.samples} for {id!r}; choose another file for the answers"
                )
        _check_counted(path, ballots, samples)
        answer_bytes = 0
    for id in samples.keys() - ballots.keys():  # samples that failed are requested again
        samples[id] = {number: sample for number, sample in samples[id].items() if sample.arrived}
    return VoteRecord({} if again else ballots, samples, answer_bytes, sample_bytes)


def read_recorded(path: Path, extractor: Extractor | None = None, must_read: bool = False) -> VoteRecord:
    """Return all ballots and samples at ``path``, also the samples of finished questions. Take no lock.

    The answers are read again from the texts if there is an ``extractor``. A sample without its text keeps its answer;
    with ``must_read`` it raises JournalError.
    """
    check_path(path)
    ballots, answer_bytes = _read_ballots(path)
    samples, sample_bytes = _read_samples(path, (), extractor, must_read)
    _check_counted(path, ballots, samples)
    return VoteRecord(ballots, samples, answer_bytes, sample_bytes)


def read_started(path: Path) -> dict[str, Any]:
    """Return the settings that the answers at ``path`` were started with. Raises JournalError without any."""
    if not (path.exists() or samples_path(path).exists()):
        raise JournalError(f"answers must be in a file that exists, got {path}; check the path")
    try:
        started = parse_json(read_config(settings_path(path)))
        if not isinstance(started, dict):
            raise ValueError(f"settings are a JSON object, got {type(started).__name__}")
    except (OSError, ValueError) as error:
        raise JournalError(
            f"{path} holds answers, and {settings_path(path).name} must say under which settings, got none; "
            "restore it, choose another file, or overwrite"
        ) from error
    return started


def check_path(path: Path) -> None:
    """Raise JournalError unless ``path`` is a .jsonl file in a folder that exists, or could be one."""
    if path.suffix != ".jsonl":
        raise JournalError(f"answers are written as .jsonl, got {shown(str(path))}; rename it")
    if not path.parent.is_dir():
        raise JournalError(f"answers must go to a file in a folder that exists, got {path}; make the folder")
    try:
        for each in (path, samples_path(path), settings_path(path), path.with_suffix(".lock")):
            is_file(each)
    except ValueError as error:
        raise JournalError(str(error)) from error


def settings_path(path: Path) -> Path:
    """Return where the settings of the answers at ``path`` are: ``answers.run.json`` beside ``answers.jsonl``."""
    return path.with_suffix(".run.json")


def samples_path(path: Path) -> Path:
    """Return where the samples of the answers at ``path`` are: ``answers.samples.jsonl`` beside ``answers.jsonl``."""
    return path.with_suffix(".samples.jsonl")


def _ballots(path: Path) -> Iterator[tuple[Ballot, int, int]]:
    return read_records(path, Ballot.from_json, "answers")


def _samples(path: Path) -> Iterator[tuple[Sample, int, int]]:
    return read_records(samples_path(path), Sample.from_json, "samples")


def _read_ballots(path: Path) -> tuple[dict[str, Ballot], int]:
    """Return the ballots by question, and the number of bytes that they take."""
    ballots: dict[str, Ballot] = {}
    whole = 0
    for ballot, line, end in _ballots(path):
        whole = end
        if ballot.id in ballots:
            raise JournalError(f"{path} must hold a question once, got {ballot.id!r} again in line {line}; remove it")
        ballots[ballot.id] = ballot
    return ballots, whole


def _read_samples(
    path: Path, but: Container[str], extractor: Extractor | None, must_read: bool
) -> tuple[dict[str, Samples], int]:
    """Return the samples of all questions apart from ``but``, and the number of bytes in the file.

    Answers are read by ``extractor``. A sample without its text keeps its answer, unless ``must_read``.
    """
    found: dict[str, dict[int, Sample]] = {}
    whole, file = 0, samples_path(path)
    for sample, line, end in _samples(path):
        whole = end
        if sample.id in but:
            continue
        if must_read and sample.arrived and sample.text is None:
            raise JournalError(
                f"{file} must hold the texts to read other answers in them, got none in line {line}; use the same "
                "extract as before, and keep texts in the next vote"
            )
        mine = found.setdefault(sample.id, {})
        if sample.number in mine and mine[sample.number].arrived:
            raise JournalError(
                f"{file} must hold a sample once, got {sample.number} of {sample.id!r} again in line {line}; remove it"
            )
        mine[sample.number] = (sample if extractor is None else sample.read(extractor)).without_text()
    return dict(found), whole


def _check_counted(path: Path, ballots: Mapping[str, Ballot], samples: Mapping[str, Samples]) -> None:
    """Raise JournalError if the ``samples`` of a finished question are not those that its ballot counted."""
    for id, ballot in ballots.items():
        found = samples.get(id, {})
        if not found.keys() >= set(range(ballot.samples)):
            continue  # some are missing, which is said elsewhere
        counted = [found[number] for number in range(ballot.samples)]
        texts = {sample.text_hash for sample in counted if sample.arrived}
        tokens = total(sample.tokens for sample in counted if sample.arrived)
        asked = all(sample.question_hash == ballot.question_hash for sample in counted)
        if not asked or (len(texts), tokens) != (ballot.texts, ballot.completion_tokens):
            raise JournalError(
                f"{samples_path(path)} must hold the samples that {path.name} counted, got others for {id!r}; "
                "restore the file of this vote, or choose another file for the answers"
            )


def _sampled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of ``settings`` that decide what is sampled, as opposed to how it is counted."""
    return {name: value for name, value in settings.items() if not is_about_counting(name)}


def _check_same(path: Path, started: Mapping[str, Any], settings: Mapping[str, Any], remedy: str) -> None:
    """Raise JournalError unless ``settings`` are those that the answers were ``started`` with."""
    try:
        check_settings(path, started, settings, remedy, MAY_CHANGE)
    except ConfigError as error:
        raise JournalError(str(error)) from error


def _write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    try:
        write_whole(path, json.dumps(settings, indent=1) + "\n")
    except OSError as error:
        raise JournalError(f"settings cannot be written to {path} ({error.strerror or error}); make room") from error
