"""Completions without a reward: they are not trained on, scored again if asked, and end a run if most have none."""

import itertools

import numpy as np
import pytest
import torch

from apportion import HORA, Uniform
from apportion.trl import AllocatedGRPOTrainer, FailedRewards
from apportion.trl.failures import RewardsFailedError
from apportion.trl.reading import RewardReader
from apportion.trl.rewards import LEAST, WINDOW, RewardVerdicts
from apportion.trl.settings import TRLAllocation
from tests.damaged_states import check_damage
from tests.trl.tiny import Judge, hora, make_questions, mark, trained

NAN = float("nan")
EVALUATED = {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}


def silent(text):
    return text[:1] in "05ag"


class Verifier:
    """A reward function that records the sizes of its calls; ``fault`` (call, prompts) raises, or gives rewards.

    If it gives none, completions are marked as usual.
    """

    __name__ = "verifier"

    def __init__(self, fault):
        self.fault, self.calls = fault, []

    def __call__(self, prompts, completions, k, log_metric, log_extra, **rest):
        self.calls.append(len(prompts))
        log_extra("text", list(completions))
        log_metric("calls", float(len(self.calls) - 1))
        found = self.fault(len(self.calls), prompts)
        return [mark(text, each) for text, each in zip(completions, k, strict=True)] if found is None else found


def failing(error, first, last=10**9):
    """Return a verifier that raises in its calls from ``first`` to ``last``."""

    def fault(call, prompts):
        if first <= call <= last:
            raise error

    return Verifier(fault)


def test_reward_functions_are_called_again_for_the_rows_without_a_reward_alone(make):
    """Every other row has none in the first two calls."""
    seen = []

    def flaky(prompts, completions, k, **rest):
        seen.append(list(zip(prompts, completions, strict=True)))
        rewards = [mark(text, each) for text, each in zip(completions, k, strict=True)]
        return [None if len(seen) < 3 and i % 2 else reward for i, reward in enumerate(rewards)]

    config = {"max_steps": 1, "log_completions": True}
    built = make(
        AllocatedGRPOTrainer, config=config, reward_funcs=[flaky], allocator=Uniform(8), failed_rewards="retry"
    )
    assert trained(built)[0]["allocation/failed"] == 0 and list(map(len, seen)) == [32, 16, 8]
    ease = {row["prompt"]: row["k"] for row in built.train_dataset}
    logged = zip(built._logs["prompt"], built._logs["completion"], built._logs["rewards"]["flaky"], strict=True)
    assert all(reward == mark(text, ease[prompt]) for prompt, text, reward in logged)


def test_what_a_function_logged_before_it_raised_is_dropped_and_it_is_called_again(make):
    """The exception is in the second round. Its columns would otherwise fall on rows of the first one."""
    verifier = failing(TimeoutError("the verifier is busy"), 2, 2)
    config, given = {"max_steps": 1, "log_completions": True}, {"allocator": hora(), "failed_rewards": "retry"}
    built = make(AllocatedGRPOTrainer, config=config, reward_funcs=[verifier], **given)
    logged = trained(built)[0]
    first, second, *alone = verifier.calls
    assert sum(alone) == second and list(built._logs["extra"]["text"]) == list(built._logs["completion"])
    mean = np.mean(np.arange(2, len(verifier.calls))) * second / (first + second)
    assert logged["calls"] == pytest.approx(mean) and logged["allocation/failed"] == 0


def test_an_exception_of_a_function_that_never_returned_is_raised_after_the_last_retry(make):
    given = {"allocator": Uniform(8), "failed_rewards": FailedRewards(retries=1, wait=0.0)}
    verifier = failing(TimeoutError("the verifier is busy"), 1)
    with pytest.raises(TimeoutError, match="the verifier is busy"):
        make(AllocatedGRPOTrainer, reward_funcs=[verifier], **given).train()
    assert verifier.calls == [32, 32]


BAD = (
    NAN,
    -float("inf"),
    1e39,  # beyond 32 bits
    10**400,
    "1.0",
    b"1",
    [1.0],
    np.array([1.0, 0.0]),
    object(),
    1j,
    {"score": 1.0},
    None,
)


def test_bad_rewards_are_failed_rollouts_that_are_told_once_a_kind_and_end_no_run(run, caplog):
    """The verdict fails although another function scores all completions."""
    turns, given = itertools.cycle(BAD), []

    def judged(text, k):
        if not silent(text):
            return mark(text, k)
        given.append(next(turns))
        return given[-1]

    others = [Judge(mark=lambda text, k: float(len(text)), name="style")]
    built, watch, history = run(
        judge=Judge(judged, name="verifier"), others=others, allocator=hora(), verdict="verifier"
    )
    bads = [sum(any(call.score is bad for bad in BAD) for call in step.calls) for step in watch.steps]
    assert [row["allocation/failed"] for row in history] == bads and sum(bads) == len(given) > len(BAD)
    assert all(parameter.isfinite().all() for parameter in built.model.parameters())
    for row, step in zip(history, watch.steps, strict=True):
        scores = [each.score for each in step.calls if isinstance(each.score, float) and each.score in (0.0, 1.0)]
        assert row["rewards/verifier/mean"] == pytest.approx(np.mean(scores)) and len(step.rows) == len(scores)
    told = [r.getMessage() for r in caplog.records if r.name == "apportion.trl.reading"]
    assert len(told) == 8  # None is TRL's word for no reward, and some kinds have the same words
    for line in told:
        assert "The reward function verifier returned" in line and "have failed, and are not trained on" in line


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_exception_fails_the_rollouts_of_its_prompt_alone(make, caplog, asynchronous):
    """One prompt is poison from the second step on: all others are scored, with the metrics that they log."""
    data = make_questions(4).add_column("data_source", [f"set {i}" for i in range(4)])

    def fault(call, prompts):
        if call > 1 and data[2]["prompt"] in prompts:
            raise TimeoutError("the sandbox is silent")

    async def later(**columns):
        return verifier(**columns)

    verifier, later.__name__ = Verifier(fault), "verifier"
    given = {"reward_funcs": [later if asynchronous else verifier], "questions": data, "allocator": Uniform(8)}
    built = make(AllocatedGRPOTrainer, config={"max_steps": 2}, **given)
    history = trained(built)
    assert [row["allocation/failed"] for row in history[:2]] == [0, 8] and len(verifier.calls) == 2 + 4
    assert not any(built._logs["extra"].get("text", ()))  # the column would lack rows
    assert history[1]["allocation/groups"] == 3
    (told,) = [r for r in caplog.records if r.name == "apportion.trl.reading"]
    assert "verifier raised TimeoutError: the sandbox is silent" in told.getMessage() and told.exc_info


def test_a_function_that_dies_is_named_with_what_it_raised(make):
    verifier = failing(ConnectionError("refused"), 2)
    with pytest.raises(RewardsFailedError, match=r"none for 64 of the latest 96 .* verifier raised Conn.*: refused"):
        make(AllocatedGRPOTrainer, reward_funcs=[verifier], allocator=Uniform(8)).train()


def test_a_call_is_given_up_after_three_prompts_in_a_row_and_one_prompt_is_called_once():
    calls = []

    def judged(prompts, **columns):
        calls.append(prompts)
        if set(prompts) - set("cf"):
            raise TimeoutError("busy")
        return [1.0] * len(prompts)

    read = RewardReader(["judged"], returned={"judged"}).reading(0, judged)
    assert read(prompts=list("abcdef")) == [np.inf, np.inf, 1.0, np.inf, np.inf, 1.0]
    assert read(prompts=["a", "a"]) == [np.inf, np.inf] and len(calls) == 1 + 6 + 1


def test_a_list_of_another_length_fails_a_call_and_ends_a_run_if_it_is_the_first():
    def wrong(completions, **columns):
        return [1.0] * (len(completions) - (len(completions) > 1))

    reader, columns = RewardReader(["wrong"]), {"prompts": ["a", "b"], "completions": ["x", "y"]}
    with pytest.raises(ValueError, match="a reward for each of 2 completions, got 1 rewards"):
        reader.reading(0, wrong)(**columns)
    reader.returned.add("wrong")
    assert reader.reading(0, wrong)(**columns) == [1.0, 1.0]  # each prompt was scored alone


def test_failures_of_an_evaluation_are_counted_apart_and_end_a_run_as_those_of_training_do(make):
    def silent_on_new(prompts, completions, **rest):
        return [
            "broken" if int(prompt[:3]) >= 100 and (i % 2 or int(prompt[:3]) > 100) else 1.0
            for i, prompt in enumerate(prompts)
        ]

    def built(rows, **settings):
        given = {
            "reward_funcs": [silent_on_new],
            "eval_dataset": make_questions(rows, extra=100),
            "allocator": Uniform(8),
        }
        return make(AllocatedGRPOTrainer, config=EVALUATED, **given, **settings)

    trainer = built(1, failed_rewards="drop")
    logged = [log for log in trained(trainer) if "eval_loss" in log]
    assert [log["eval_allocation/failed"] for log in logged] == [4] and trainer._rewards.number == 0
    with pytest.raises(RewardsFailedError, match=r"at most 0 may have none.*silent_on_new returned text, 'broken'"):
        built(1, failed_rewards="abort").train()
    with pytest.raises(RewardsFailedError, match=r"got none for .* \(at most 50% may have none\)"):
        built(8).train()


def test_what_a_reward_function_does_to_its_arguments_changes_no_rollout():
    def rough(prompts, completion_ids, **columns):
        prompts[0] = "gone"
        completion_ids[0].clear()
        return [1.0]

    columns = {"prompts": ["a"], "completion_ids": [[1, 2]]}
    RewardReader(["rough"]).reading(0, rough)(**columns)
    assert columns == {"prompts": ["a"], "completion_ids": [[1, 2]]}


def test_a_resumed_run_goes_on_with_its_count_and_the_functions_that_returned():
    """``test_stream`` resumes a run whose function raises in its first call, which would end a new one."""
    count = counting(["math", "code"], allocator=HORA(), verdict="math")
    count.failed(torch.tensor([[1.0, NAN], [NAN, 1.0], [NAN, NAN]]), ["a"] * 3)
    count.reader.returned.add("code")
    again = counting(["math", "code"], allocator=HORA(), verdict="math")
    again.load_state_dict(count.state_dict())
    assert again.state_dict() == count.state_dict() == {"number": 1, "returned": ["code"], "beside": [], "apart": [1]}
    assert again.failed(torch.tensor([[NAN, 1.0]]), ["a"]) == [False]


def counting(names=("judge",), failed="stop", allocator=None, **given):
    """Return an empty count of failures by reward functions of these names."""
    allocation = TRLAllocation(allocator=allocator or Uniform(8), failed_rewards=failed, **given)
    return RewardVerdicts(allocation, names, torch.ones(len(names)))


def test_a_damaged_count_is_refused():
    state = {"number": 2, "returned": ["judge"], "beside": [0], "apart": []}
    assert check_damage(counting, state, lambda count: count.failed(torch.zeros(2, 1), ["a", "b"])) > 50
    older = counting()
    older.load_state_dict({"number": 2})  # of a version that saved no more
    assert older.state_dict() == {"number": 2, "returned": [], "beside": [], "apart": []}


def test_failures_are_counted_over_the_latest_completions_or_the_whole_run():
    count, ok, bad = counting(), torch.zeros(100, 1), torch.full((100, 1), NAN)
    for _ in range(5):
        assert not any(count.failed(ok, ["a"] * 100))
    assert all(count.failed(bad, ["a"] * 100))
    with pytest.raises(RewardsFailedError, match=f"got none for 200 of the latest {WINDOW} .*judge returned None.*'b'"):
        count.failed(bad, ["b"] * 100)
    assert count.number == 200

    few = counting()
    few.failed(torch.full((LEAST - 1, 1), NAN), ["a"] * (LEAST - 1))
    with pytest.raises(RewardsFailedError):
        few.failed(torch.tensor([[NAN]]), ["a"])

    whole = counting(failed=FailedRewards(share=1.0, number=1))
    whole.failed(torch.tensor([[NAN], [0.0]]), ["x", "y"])
    message = r"\(at most 1 may have none\); judge returned None, 2 times in this run, for example for the prompt 'x'"
    with pytest.raises(RewardsFailedError, match=message):
        whole.failed(torch.tensor([[NAN]]), ["x"])


def test_the_verdict_of_a_prompt_is_that_of_the_function_which_judges_it(caplog):
    """Two tasks, and a reward for the format. What fails while nothing is known of the tasks stays failed."""
    names = ["math", "code", "format"]
    count = counting(names, allocator=HORA(), verdict="math")
    outage = torch.tensor([[NAN, NAN, 1.0], [NAN, 1.0, 1.0]])
    assert count.failed(outage, ["a"] * 2) == [True, True] and not caplog.records
    both = torch.tensor([[1.0, NAN, 1.0], [NAN, 0.0, 1.0], [NAN, 1.0, 0.0], [NAN, NAN, 1.0]])
    for _ in range(2):
        assert count._verdicts(both) == [True, False, True, None]
        assert count.failed(both, ["a"] * 4) == [False, False, False, True]
    assert [record.getMessage() for record in caplog.records] == [
        "math gives None for some prompts; their completions are correct if code is above 0"
    ]
    count.failed(torch.tensor([[1.0, 1.0, 1.0]]), ["a"])
    assert count.failed(both, ["a"] * 4) == [False, True, True, True]
    assert counting(names).failed(both, ["a"] * 4) == [False] * 4


def test_rewards_of_minus_one_and_one_are_verdicts_and_those_of_three_values_are_graded():
    counts, grades = counting(allocator=HORA()), counting()
    wrong_and_right, three = torch.tensor([[-1.0], [1.0]]), torch.tensor([[-1.0], [0.0], [1.0]])
    assert counts._verdicts(wrong_and_right) == grades._verdicts(wrong_and_right) == [False, True]
    assert grades._verdicts(three) == [None] * 3
    with pytest.raises(ValueError, match="rewards must be 0 or 1 for hora, which counts correct rollouts, got"):
        counts._verdicts(three)
