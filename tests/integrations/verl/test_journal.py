"""A journal is whole up to the last record, wherever its writer died."""

import pickle

import pytest

from apportion import Rollout
from apportion.integrations.verl import journal as journal_module
from apportion.integrations.verl.journal import Journal
from apportion.integrations.verl.messages import Logged, Moved, Report, Written
from tests.integrations.verl.crew import dispatch_of, texts

ROLLOUT = Rollout(True, "4", completion=Written(b"digest", "h1-0", 2, (5, 3)), tokens=8)
RECORDS = [
    dispatch_of(texts(0, 1)),
    (Report("h1-0:1", (ROLLOUT,)), Report("h1-1:1", failures=("it raised",), expired=True)),
    Moved(("h1-0", "h1-1"), "b"),
    Logged(),
    (Report("h1-0:published"),),
]


@pytest.fixture
def make(tmp_path):
    """Makes journals of the same file, as processes do one after the other."""
    journals = []

    def made(name="folder/journal"):
        journals.append(Journal(tmp_path / name))
        return journals[-1]

    yield made
    for journal in journals:
        journal.close()


def test_what_is_written_is_read_before_the_writer_closes(make):
    writer = make()
    for record in RECORDS:
        writer.write(record)
    state, records = make().resume()
    assert (state, records) == (None, RECORDS)
    (rollout,) = records[1][0].rollouts
    assert rollout.completion.keys == ROLLOUT.completion.keys == ["h1-0_2_0", "h1-0_2_1"]


def test_a_journal_that_was_never_written_is_empty(make):
    journal = make()
    assert journal.resume() == (None, [])
    assert not journal.path.exists()
    journal.write(RECORDS[0])
    assert make().resume() == (None, RECORDS[:1])


def test_a_restart_takes_the_place_of_all_before(make):
    journal = make()
    journal.write(RECORDS[0])
    journal.restart({"learnt": [1, 2]})
    journal.write(RECORDS[2])
    assert make().resume() == ({"learnt": [1, 2]}, [RECORDS[2]])


def test_a_file_that_ends_anywhere_gives_the_whole_records_and_goes_on(make):
    writer, ends = make(), []
    writer.restart({"learnt": 3})
    ends.append(writer.path.stat().st_size)
    for record in RECORDS:
        writer.write(record)
        ends.append(writer.path.stat().st_size)
    whole = writer.path.read_bytes()
    assert ends[-1] == len(whole)
    for size in range(ends[0], len(whole) + 1):
        journal = make("cut")
        journal.path.write_bytes(whole[:size])
        expected = [record for record, end in zip(RECORDS, ends[1:], strict=True) if end <= size]
        assert journal.resume() == ({"learnt": 3}, expected)
        journal.write(Logged())
        journal.close()
        assert make("cut").resume()[1] == [*expected, Logged()]


def test_it_is_large_when_records_outgrow_what_they_follow(make, monkeypatch):
    monkeypatch.setattr(journal_module, "LARGE_BYTES", 3000)
    record = RECORDS[1]
    size = len(pickle.dumps(record, protocol=pickle.HIGHEST_PROTOCOL))
    for state, least in ((None, 3000), (b"x" * 9000, 9000)):
        journal, written = make(), 0
        assert not journal.large
        journal.restart(state)
        while not journal.large:
            journal.write(record)
            written += size
        assert least < written <= least + 2 * size
        journal.close()
        after = make()
        after.resume()
        assert after.large
        after.restart(state)
        assert not after.large


def test_an_unfinished_restart_leaves_the_old_journal(make, monkeypatch):
    journal = make()
    journal.write(RECORDS[0])
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        journal.restart({"learnt": lambda: None})
    journal.write(RECORDS[2])
    assert make().resume() == (None, [RECORDS[0], RECORDS[2]])
