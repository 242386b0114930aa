"""The rollout log, written and read back: nothing is lost or torn, and other files are refused."""

import itertools
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from apportion import DAPO, Group, Plan, Prompt, Rollout, Uniform, collect
from apportion.advantages import advantages_of, rollout_weights
from apportion.records import (
    VERSION,
    RecordError,
    follow,
    open_run,
    prepare_log,
    read_log,
    read_streams,
    record_of_log,
    remove_steps_after,
    resume_log,
    start_log,
    write_step,
)
from apportion.records.log_reading import _check_steps
from apportion.records.recorded import Recorded
from tests.builders import bernoulli_sampler, make_batch, make_prompts
from tests.contract.test_allocators import POPULATION, SUCCESS
from tests.contract.test_kept import EVERY as KEPT
from tests.contract.test_kept import TRAINS_ON_EARLIER
from tests.rules import MAKE

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

EVERY = MAKE | {name: KEPT[name] for name in TRAINS_ON_EARLIER}
STEPS = 4


def with_completions(sample, label):
    """Return ``sample`` with completions that are unique texts."""
    number = itertools.count()
    return lambda prompts, counts: [
        [_labelled(rollout, label, next(number)) for rollout in own] for own in sample(prompts, counts)
    ]


def _labelled(rollout, label, number):
    return replace(rollout, completion=f"{label} {number}", score_norm=1.5, truncated=(None, True, False)[number % 3])


def batches(allocator, sampler_of):
    """Yield a finished batch a step, not yet observed. Fresh prompts come in the same order at every step."""
    for step in range(STEPS):
        fresh = iter(make_prompts(len(POPULATION))[len(SUCCESS) :])
        source = lambda count, fresh=fresh: list(itertools.islice(fresh, count))  # noqa: E731
        yield step, collect(allocator, make_prompts(len(SUCCESS)), sampler_of(step), source=source)


def logged(folder, allocator, failing=0.0):
    """Log a few steps; return the batch, groups, advantages and weights of each. Success alternates by step."""
    written = []
    success = (POPULATION, POPULATION[::-1])
    sampler_of = lambda step: with_completions(bernoulli_sampler(success[step % 2], step, failing), step)  # noqa: E731
    for step, batch in batches(allocator, sampler_of):
        groups = allocator.groups(batch)
        advantages = advantages_of(groups)
        weights = rollout_weights(np.repeat(np.arange(len(groups)), [len(g.rollouts) for g in groups]), "prompt")
        write_step(folder, step, batch, groups, advantages, weights)
        allocator.observe(batch)
        written.append((batch, groups, advantages, weights))
    return written


def rows_of(folder, step=0):
    return [row for row in read_log(folder).to_pylist() if row["step"] == step]


@pytest.mark.parametrize("name", EVERY)
def test_a_log_holds_every_rollout_and_its_use(tmp_path, name):
    reused = rollouts_drawn = 0
    for step, (batch, groups, advantages, weights) in enumerate(logged(tmp_path, EVERY[name](), failing=0.3)):
        rows = rows_of(tmp_path, step)
        drawn = [row for row in rows if row["index"] is not None and row["reused_step"] is None]
        for q, (prompt, rollouts) in enumerate(zip(batch.prompts, batch.rollouts, strict=True)):
            own = [row for row in drawn if row["place"] == q]
            keys = ("correct", "answer", "reward", "completion", "tokens", "score_norm", "round", "truncated")
            assert [[row[key] for key in keys] for row in own] == [[getattr(r, key) for key in keys] for r in rollouts]
            assert [row["index"] for row in own] == [*range(len(rollouts))]
            shared = {(r["prompt_id"], r["prompt"], r["predicted"], r["asked"]) for r in rows if r["place"] == q}
            assert shared == {(prompt.id, prompt.text, batch.belief.mean[q], batch.asked[q])}
        numbers = iter(zip(advantages.tolist(), weights.tolist(), strict=True))
        of_groups = [(group.prompt, *pair) for group in groups for pair in zip(group.rollouts, group.keep, strict=True)]
        seen = [(p.id, r.completion, r.step, bool(k), *next(numbers)) for p, r, k in of_groups]
        values = ("prompt_id", "completion", "reused_step", "kept", "advantage", "weight")
        used = Counter(tuple(row[key] for key in values) for row in rows)
        assert used == Counter(seen) + Counter({key: n for key, n in used.items() if key[3:] == (False, None, None)})
        reused += sum(row["reused_step"] is not None for row in rows)
        rollouts_drawn += len(drawn)
    assert len(record_of_log(tmp_path).reward) == rollouts_drawn
    assert (reused > 0) == ("ar3po" in name)


@pytest.mark.parametrize("name", EVERY)
def test_a_replay_of_the_log_asks_for_the_same_counts(tmp_path, name):
    written = logged(tmp_path, EVERY[name]())
    replayed, recorded = EVERY[name](), Recorded(read_streams(tmp_path))
    for step, batch in batches(replayed, lambda step: recorded):
        first, groups, *_ = written[step]
        assert batch.asked.tolist() == first.asked.tolist()
        assert batch.rollouts == first.rollouts
        assert replayed.groups(batch) == groups
        replayed.observe(batch)


def test_a_repeated_prompt_keeps_its_two_groups_and_the_order_of_its_rollouts(tmp_path):
    twice, allocator = [Prompt("a"), Prompt("a")], DAPO(rollouts_per_prompt=2, target=1, max_draws=1)
    batch = allocator.start(twice).add(
        Plan([2, 2]),
        [[Rollout(False, completion=text) for text in "pq"], [Rollout(x, completion=str(x)) for x in (True, False)]],
    )
    write_step(tmp_path, 0, batch, allocator.groups(batch))
    assert [(row["place"], row["kept"]) for row in rows_of(tmp_path)] == [(0, False)] * 2 + [(1, True)] * 2
    batch = batch.add(Plan([1, 1]), [[Rollout(True, completion="r")], [Rollout(True, completion="s")]])
    write_step(tmp_path, 0, batch, Uniform(3).groups(batch))
    stream = read_streams(tmp_path)[twice[0].id]
    assert [rollout.completion for rollout in stream] == ["p", "q", "True", "False", "r", "s"]  # round by round


def test_prompts_without_a_rollout_stay_in_the_log(tmp_path):
    batch = Uniform(2).start(make_prompts(2)).add(Plan([2, 2]), [[Rollout(True)], []])
    write_step(tmp_path, 0, batch, Uniform(2).groups(batch))
    table = read_log(tmp_path)
    assert table["asked"].to_pylist() == [2, 2] and table["index"].to_pylist() == [0, None]
    assert read_streams(tmp_path) == {batch.prompts[0].id: [Rollout(True)], batch.prompts[1].id: []}


def test_a_given_function_turns_completions_into_texts(tmp_path):
    rollouts = [Rollout(np.bool_(True), "\ud83d", np.float64(0.5), (1, 2), np.int64(2)), Rollout(reward=0.25)]
    batch = Uniform(2).start([Prompt("\ud83d", id="named")]).add(Plan([2]), [rollouts])
    write_step(tmp_path, 3, batch, Uniform(2).groups(batch), text=lambda tokens: f"\ud83d{len(tokens)}")
    first, second = rows_of(tmp_path, 3)
    assert (first["prompt"], first["prompt_id"]) == ("?", "named")
    assert (first["completion"], first["answer"], first["correct"], first["reward"]) == ("?2", "?", True, 0.5)
    assert (second["completion"], second["answer"], second["correct"], second["tokens"]) == (None, None, None, None)


def test_a_step_that_is_run_again_replaces_its_file(tmp_path):
    written = set()
    for outcomes in ([[1, 0]], [[1, 1, 1]]):
        batch = make_batch(outcomes)
        path = write_step(tmp_path, 7, batch, Uniform(2).groups(batch))
        written.add(path.stat().st_ino)
    assert len(written) == 2  # a whole file in its place, and no file that is written while it is read
    assert path == tmp_path / "step-000007.parquet" and [*tmp_path.iterdir()] == [path]
    assert read_log(tmp_path)["correct"].to_pylist() == [True] * 3


def test_steps_come_in_order_and_those_after_a_checkpoint_are_removed(tmp_path):
    batch = make_batch([[1]])
    for step in (1_000_000, 3, 20, 999_999):
        write_step(tmp_path, step, batch, Uniform(1).groups(batch))
    (tmp_path / "notes.txt").write_text("not a step")
    assert read_log(tmp_path)["step"].to_pylist() == [3, 20, 999_999, 1_000_000]
    remove_steps_after(tmp_path, 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "notes.txt",
        "step-000003.parquet",
        "step-000020.parquet",
    ]
    remove_steps_after(tmp_path / "not there yet", 0)


def test_a_log_of_another_version_is_refused(tmp_path):
    path = write_step(tmp_path, 0, make_batch([[1]]), [])
    table = parquet.read_table(path)
    later = {key: str(VERSION + 1) for key in table.schema.metadata}
    parquet.write_table(table.replace_schema_metadata(later), tmp_path / "step-000001.parquet")
    for read in (read_log, read_streams):
        with pytest.raises(RecordError, match=f"must be of version {VERSION} .*, got {VERSION + 1};"):
            read(tmp_path)


def test_files_that_are_not_steps_of_a_log_are_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RecordError, match=r"must have a step-NNNNNN\.parquet, got none"):
            read_log(folder)
    path = tmp_path / "step-000000.parquet"
    parquet.write_table(pyarrow.table({"step": [0]}), path)
    with pytest.raises(RecordError, match="got other Parquet"):
        read_log(tmp_path)
    for content in (b"", b"no parquet at all"):
        path.write_bytes(content)
        with pytest.raises(RecordError, match="got no Parquet"):
            read_log(tmp_path)


def test_a_file_with_one_bit_changed_is_refused_or_read_as_it_was(tmp_path):
    """Pages have checksums. Bits that no value depends on, as in the name of the writer, may change."""
    batch = make_batch([[1, 0], [1]])
    path = write_step(tmp_path, 0, batch, Uniform(2).groups(batch))
    whole, rows, refused = path.read_bytes(), read_log(tmp_path).to_pylist(), 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        try:
            assert read_log(tmp_path).to_pylist() == rows
        except RecordError:
            refused += 1
    assert refused > len(whole) / 12


def test_groups_that_are_not_those_of_the_batch_are_refused(tmp_path):
    batch = make_batch([[1, 0], [0, 1, 1]])
    first, second = Uniform(2).groups(batch)
    marked = replace(first.rollouts[0], completion="another")
    for groups in (
        [second, first],
        [first, first],
        [Group(Prompt("not in it"), first.rollouts)],
        [Group(first.prompt, (marked, first.rollouts[1]))],
        [Group(first.prompt, second.rollouts)],
    ):
        with pytest.raises(ValueError, match="groups must hold the first rollouts"):
            write_step(tmp_path, 0, batch, groups)
    for name in ("advantages", "weights"):
        with pytest.raises(ValueError, match=rf"{name} must be \[5\], .* got \(2,\)"):
            write_step(tmp_path, 0, batch, [first, second], **{name: [0.5, 0.5]})
    with pytest.raises(ValueError, match="at least 0, got -1"):
        write_step(tmp_path, -1, batch, [first, second])
    assert not [*tmp_path.iterdir()]


def test_a_log_is_of_one_run(tmp_path):
    batch = make_batch([[1]])
    folders = tmp_path / "one", tmp_path / "other"
    one, other = map(start_log, folders)
    assert one != other and start_log(folders[0]) != one  # no step was written yet
    one = start_log(folders[0])
    for folder in folders:
        for step in range(3):
            write_step(folder, step, batch, Uniform(1).groups(batch))
    with pytest.raises(RecordError, match=r"without steps, got .*one with 3 of another run; choose another folder"):
        start_log(folders[0])
    for run in (other, None):
        with pytest.raises(
            RecordError, match=r"needs its own rollout log, got .*one with 3 steps of another run; give"
        ):
            resume_log(folders[0], run, 1)
    assert resume_log(folders[0], one, 1) == one
    assert read_log(folders[0])["step"].to_pylist() == [0, 1]
    assert resume_log(tmp_path / "new", one, 1) == one
    (folders[0] / "run.txt").unlink()
    with pytest.raises(RecordError, match="of another run"):
        resume_log(folders[0], None, 1)


def test_problems_of_a_log_are_found_before_anything_is_sampled(tmp_path, monkeypatch):
    prepare_log(tmp_path / "runs" / "log")
    assert (tmp_path / "runs" / "log").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"needs a folder, got .*file"):
        prepare_log(tmp_path / "file")
    write_step(tmp_path, 0, make_batch([[1]]), [])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call in (prepare_log, read_log, open_run, lambda folder: next(follow(folder, timeout_seconds=0))):
        with pytest.raises(RecordError, match=r"pip install 'apportion\[report\]'"):
            call(tmp_path)


def test_a_table_without_rows_has_no_steps_to_compare(tmp_path):
    """A file of a step may hold nothing but its columns."""
    path = tmp_path / "step-000000.parquet"
    for table in (pyarrow.table({"step": pyarrow.array([], pyarrow.int64())}), pyarrow.table({"other": [1]})):
        _check_steps(path, table)
    with pytest.raises(RecordError, match="must have the steps of its name, got 3 to 4"):
        _check_steps(path, pyarrow.table({"step": [3, 4]}))
