"""A journal is complete up to the last event, wherever its writer died."""

import pickle

import numpy as np
import pytest

from apportion import Batch, Rollout
from apportion.verl.coordinator import journal as journal_module
from apportion.verl.coordinator.event_pickles import restore_array
from apportion.verl.coordinator.frames import make_frame
from apportion.verl.coordinator.journal import DamagedJournalError, EventJournal
from apportion.verl.coordinator.messages import MetricsLogged, Reassigned, TaskResult, WrittenRollout
from tests.hostile import FILES, MARKER, Command
from tests.verl.coordinator.worker_pool import request_of, texts

ROLLOUT = Rollout(True, "4", completion=WrittenRollout(b"digest", "h1-0", 2, (5, 3)), tokens=8)
RECORDS = [
    request_of(texts(0, 1)),
    (TaskResult("h1-0:1", (ROLLOUT,)), TaskResult("h1-1:1", failures=("it raised",), expired=True)),
    Reassigned(("h1-0", "h1-1"), "b"),
    MetricsLogged(),
    (TaskResult("h1-0:committed"),),
]


@pytest.fixture
def make(tmp_path):
    """Return a function that opens the same journal again, as processes do one after the other."""
    journals = []

    def make_coordinator(name="folder/journal"):
        journals.append(EventJournal(tmp_path / name))
        return journals[-1]

    yield make_coordinator
    for journal in journals:
        journal.close()


def test_events_can_be_read_before_the_writer_closes(make):
    writer = make()
    for event in RECORDS:
        writer.write(event)
    state, events = make().resume()
    assert (state, events) == (None, RECORDS)
    (rollout,) = events[1][0].rollouts
    assert rollout.completion.keys == ROLLOUT.completion.keys == ["h1-0_2_0", "h1-0_2_1"]


def test_an_unwritten_journal_is_empty(make):
    journal = make()
    assert journal.resume() == (None, [])
    assert not journal.path.exists()
    journal.write(RECORDS[0])
    assert make().resume() == (None, RECORDS[:1])


def test_a_snapshot_replaces_all_events(make):
    journal = make()
    journal.write(RECORDS[0])
    journal.restart({"learned": [1, 2]})
    journal.write(RECORDS[2])
    assert make().resume() == ({"learned": [1, 2]}, [RECORDS[2]])


def test_a_file_cut_anywhere_gives_the_complete_events_and_continues(make):
    writer, ends = make(), []
    writer.restart({"learned": 3})
    ends.append(writer.path.stat().st_size)
    for event in RECORDS:
        writer.write(event)
        ends.append(writer.path.stat().st_size)
    whole = writer.path.read_bytes()
    assert ends[-1] == len(whole)
    for size in range(ends[0], len(whole) + 1):
        journal = make("cut")
        journal.path.write_bytes(whole[:size])
        expected = [event for event, end in zip(RECORDS, ends[1:], strict=True) if end <= size]
        assert journal.resume() == ({"learned": 3}, expected)
        journal.write(MetricsLogged())
        journal.close()
        assert make("cut").resume()[1] == [*expected, MetricsLogged()]


def test_a_journal_with_one_bit_changed_gives_no_other_events(make):
    """The size of an event is checked, too: a wrong one would make all later events look cut off."""
    writer = make()
    for event in RECORDS:
        writer.write(event)
    whole = writer.path.read_bytes()
    for place in range(len(whole)):
        journal = make("changed")
        journal.path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        assert "are not those that were written" in refused(journal)


def test_it_is_large_once_events_outgrow_the_snapshot(make, monkeypatch):
    monkeypatch.setattr(journal_module, "LARGE_BYTES", 3000)
    event = RECORDS[1]
    size = len(make_frame(event))
    for state, least in ((None, 3000), (b"x" * 9000, 9000)):
        journal, written = make(), 0
        assert not journal.large
        journal.restart(state)
        while not journal.large:
            journal.write(event)
            written += size
        assert least < written <= least + 2 * size
        journal.close()
        after = make()
        after.resume()
        assert after.large
        after.restart(state)
        assert not after.large


def test_a_failed_snapshot_leaves_the_old_journal(make, monkeypatch):
    journal = make()
    journal.write(RECORDS[0])
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        journal.restart({"learned": lambda: None})
    journal.write(RECORDS[2])
    assert make().resume() == (None, [RECORDS[0], RECORDS[2]])


def refused(journal):
    """Return the error of a journal that cannot be read, which must be one line with file and remedy."""
    with pytest.raises(DamagedJournalError) as caught:
        journal.resume()
    said = str(caught.value)
    assert said.startswith(f"{journal.path}: the journal cannot be read: ") and "\n" not in said
    assert said.endswith("; delete it, and resume the run from a checkpoint")
    return said


@pytest.mark.parametrize("name", FILES)
def test_a_foreign_file_is_refused_in_one_line_and_runs_no_code(make, tmp_path, name):
    journal = make("foreign")
    journal.path.write_bytes(FILES[name](tmp_path / MARKER))
    refused(journal)
    assert not (tmp_path / MARKER).exists()


def test_code_among_the_events_is_refused_and_never_cut_off_as_incomplete(make, tmp_path):
    journal = make()
    journal.write(RECORDS[0])
    with journal.path.open("ab") as file:
        file.write(make_frame((TaskResult("h1-0:1"), Command(tmp_path / MARKER))))
    before = journal.path.read_bytes()
    assert "system" in refused(make())
    assert journal.path.read_bytes() == before and not (tmp_path / MARKER).exists()


@pytest.mark.parametrize("event", [b"text", {"state": 1}, [TaskResult("h1-0:1")], ("text",), ROLLOUT])
def test_something_else_than_an_event_is_refused(make, event):
    journal = make()
    journal.write(RECORDS[0])
    journal.write(event)
    assert "must hold events of a coordinator" in refused(make())


class Call:
    """Unpickling it calls ``function``."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "forged",
    [
        Call(np.ndarray, (10**12,)),
        Call(np.frombuffer, b"x" * 8, object),
        Call(np.dtype, "O"),
        np.array([None, "objects"]),
        Call(restore_array, "O", (1,), bytes(8)),
        Call(restore_array, "<f8", (10**12,), bytes(8)),
        Call(restore_array, "<f8", (-5, 10**12), bytes(8)),
        Call(restore_array, "no such type", (1,), bytes(8)),
        Call(getattr, TaskResult, "__init__"),
        Call(eval, "1"),
        Call(Batch, 1, 2),
    ],
)
def test_numpy_and_builtins_give_a_forged_journal_nothing_to_call(make, forged):
    journal = make()
    journal.path.parent.mkdir()
    journal.path.write_bytes(make_frame({"learned": forged}))
    refused(journal)


def test_arrays_and_numbers_of_numpy_come_back_exactly(make):
    rng = np.random.default_rng(0)
    state = {
        "arrays": [rng.normal(size=(2, 3)).T, np.zeros((0, 2), np.int64), np.array(2.5), np.array([True, False])],
        "numbers": [np.float64(0.1), np.float32(0.1), np.int64(7), np.bool_(True)],
    }
    journal = make()
    journal.restart(state)
    found, events = make().resume()
    assert events == []
    for key in state:
        for one, other in zip(state[key], found[key], strict=True):
            assert type(one) is type(other) and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    assert found["arrays"][0].flags.writeable
