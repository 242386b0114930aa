"""What a reward function said: a dead verifier does not flood the log."""

from itertools import count

from apportion.scheduler import outcomes
from apportion.types import Needs


def test_failed_rollouts_are_warned_of_at_powers_of_ten_with_their_number(monkeypatch, caplog):
    monkeypatch.setattr(outcomes, "_failed", count(1))
    assert all(outcomes.rollout_of("no", Needs()) is None for _ in range(250))
    assert [record.args for record in caplog.records] == [(number, "text, 'no'") for number in (1, 10, 100)]
