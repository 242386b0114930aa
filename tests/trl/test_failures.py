"""Completions without a reward: they are not trained on, scored again if asked, and end a run if most have none."""

import re
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from apportion import AR3PO, DAPO, HORA, ReinforceAda, Uniform
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer, FailedRewards
from apportion.trl.failures import LEAST, WINDOW, FailureCount, RewardsFailedError, failed_rows
from tests.trl.tiny import TERMS, Judge, Watch, assert_gradient, direct_gradient, make_questions, mark, trained

NAN = float("nan")


def hora():
    return HORA(pre_rollouts=3, rollouts_per_prompt=8, high=16)


@pytest.mark.parametrize(
    ("trainer", "loss"),
    [(AllocatedGRPOTrainer, loss) for loss in ("grpo", "dr_grpo", "dapo")] + [(AllocatedRLOOTrainer, "rloo")],
)
def test_unscored_rows_weigh_nothing_in_any_normaliser(make, trainer, loss):
    judge = Judge(none=lambda text: text[:1] in "05ag")
    watch = Watch(judge)
    config = {"max_steps": 1, "max_grad_norm": 0.0} | ({} if loss == "rloo" else {"loss_type": loss})
    trained(watch.on(make(trainer, config=config, reward_funcs=[judge], allocator=Uniform(8))))
    (step,), (weights, gradient) = watch.steps, watch.updates[0]
    assert len(step.rows) == sum(call.score is not None for call in step.calls) < 32
    assert_gradient(gradient, direct_gradient(weights, step.rows, TERMS[loss]))


def test_a_dead_verifier_ends_the_run_in_the_first_step_and_is_named(make):
    judge, style = Judge(none=lambda text: True, name="verifier"), Judge(none=lambda text: True, name="style")
    built = make(AllocatedGRPOTrainer, reward_funcs=[style, judge], allocator=DAPO(), verdict="verifier")
    expected = (
        "completions must have rewards, got none for 32 of the latest 32 (at most 50% may have none); style and "
        "verifier returned None, for example for the prompt '"
    )
    with pytest.raises(RewardsFailedError, match=re.escape(expected)):
        built.train()
    assert built.state.global_step == 0
    assert sum(len(calls) for calls in judge.rounds) == LEAST


def test_failures_of_the_verdict_alone_are_failures(make):
    """The other reward function scores all completions, and says nothing about which are correct."""
    judge = Judge(none=lambda text: text[:1] in "05ag", name="verifier")
    length = Judge(mark=lambda text, k: float(len(text)), name="length")
    config = {"max_steps": 2}
    built = make(
        AllocatedGRPOTrainer, config=config, reward_funcs=[length, judge], allocator=hora(), verdict="verifier"
    )
    history = trained(built)
    silent = [sum(call.score is None for call in judge.rounds[i] + judge.rounds[i + 1]) for i in (0, 2)]
    assert [row["allocation/failed"] for row in history[:2]] == silent and min(silent) > 0


def test_dropping_never_ends_a_run(make):
    judge = Judge(none=lambda text: True)
    config = {"max_steps": 2, "max_grad_norm": 0.0}
    watch = Watch(judge)
    built = make(AllocatedGRPOTrainer, config=config, reward_funcs=[judge], allocator=Uniform(8), failed_rewards="drop")
    history = trained(watch.on(built))
    assert [row["allocation/failed"] for row in history[:2]] == [32.0, 32.0]
    assert all(gradient.abs().max() == 0.0 for _, gradient in watch.updates) and len(watch.updates) == 2


def test_aborting_ends_a_run_at_the_first_failure(make):
    judge = Judge(none=lambda text: text[:1] in "05ag")
    built = make(AllocatedGRPOTrainer, reward_funcs=[judge], allocator=Uniform(8), failed_rewards="abort")
    with pytest.raises(RewardsFailedError, match=r"got none for \d+ of the latest 32 \(at most 0 may have none\)"):
        built.train()


class Flaky:
    """A reward function that gives None for every completion, or raises, until it is called for the third time."""

    __name__ = "flaky"

    def __init__(self, raises=False):
        self.raises, self.calls, self.seen = raises, [], []

    def __call__(self, prompts, completions, k, log_extra=None, **rest):
        self.calls.append(len(prompts))
        self.seen = list(zip(prompts, completions, strict=True))
        if log_extra is not None:
            log_extra("of_call", [len(self.calls)] * len(prompts))
        if len(self.calls) < 3 and self.raises:
            raise TimeoutError("the verifier is busy")
        fails = [len(self.calls) < 3 and i % 2 == 1 for i in range(len(prompts))]
        return [None if f else mark(text, each) for f, text, each in zip(fails, completions, k, strict=True)]


def test_reward_functions_are_called_again_for_the_rows_without_a_reward_alone(make):
    judge = Flaky()
    config = {"max_steps": 1, "log_completions": True}
    built = make(
        AllocatedGRPOTrainer, config=config, reward_funcs=[judge], allocator=Uniform(8), failed_rewards="retry"
    )
    history = trained(built)
    assert judge.calls == [32, 16, 8] and history[0]["allocation/failed"] == 0
    marks = {(p, c): mark(c, row["k"]) for row in built.train_dataset for p, c in judge.seen if p == row["prompt"]}
    logged = zip(built._logs["prompt"], built._logs["completion"], built._logs["rewards"]["flaky"], strict=True)
    found = {(p, c): reward for p, c, reward in logged}
    assert all(found[key] == value for key, value in marks.items()) and marks


def test_an_exception_of_a_reward_function_is_retried(make):
    judge = Flaky(raises=True)
    built = make(
        AllocatedGRPOTrainer,
        config={"max_steps": 1},
        reward_funcs=[judge],
        allocator=Uniform(8),
        failed_rewards="retry",
    )
    assert trained(built)[0]["allocation/failed"] == 0 and judge.calls == [32, 32, 32]


def test_an_exception_of_a_function_that_never_returned_is_raised_after_the_last_retry(make):
    judge = Flaky(raises=True)
    allowed = FailedRewards(retries=1, wait=0.0)
    built = make(AllocatedGRPOTrainer, reward_funcs=[judge], allocator=Uniform(8), failed_rewards=allowed)
    with pytest.raises(TimeoutError, match="the verifier is busy"):
        built.train()
    assert judge.calls == [32, 32]


BAD = {
    "NaN": NAN,
    "infinite": -float("inf"),
    "beyond 32 bits": 1e39,
    "a whole number without end": 10**400,
    "text": "1.0",
    "bytes": b"1",
    "a list": [1.0],
    "an array of two": np.array([1.0, 0.0]),
    "an object": object(),
    "a complex number": 1j,
    "a dict": {"score": 1.0},
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("style", [False, True], ids=["alone", "beside another"])
def test_one_bad_reward_is_a_failed_rollout_that_is_told_once_and_ends_no_run(make, caplog, bad, style):
    judge = Judge(mark=lambda text, k: bad if text[:1] in "05ag" else mark(text, k), name="verifier")
    others = [Judge(mark=lambda text, k: float(len(text)), name="style")] if style else []
    built = make(AllocatedGRPOTrainer, reward_funcs=[judge, *others], allocator=hora(), verdict="verifier")
    history = trained(built)
    bads = [sum(call.score is bad for call in judge.rounds[i] + judge.rounds[i + 1]) for i in (0, 2, 4)]
    assert [row["allocation/failed"] for row in history[:3]] == bads and min(bads) > 0
    assert all(parameter.isfinite().all() for parameter in built.model.parameters())
    assert all(np.isfinite(row["rewards/verifier/mean"]) for row in history[:3])
    (told,) = [r.getMessage() for r in caplog.records if r.name == "apportion.trl.rewards"]
    assert "The reward function verifier returned" in told and "have failed, and are not trained on" in told


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_exception_fails_the_rollouts_of_its_prompt_alone(make, caplog, asynchronous):
    """One prompt is poison from the second step on: all others are scored, with what they log."""
    calls = []

    def verifier(prompts, completions, k, log_metric, data_source, **rest):
        calls.append(prompts)
        log_metric("calls", 1.0)
        if poison in prompts and len(calls) > 1:
            raise TimeoutError("the sandbox is silent")
        return [mark(text, each) for text, each in zip(completions, k, strict=True)]

    async def later(**columns):
        return verifier(**columns)

    later.__name__ = "verifier"
    data = make_questions(4)
    data = data.add_column("data_source", [f"set {i}" for i in range(4)])
    poison = data[2]["prompt"]
    built = make(
        AllocatedGRPOTrainer,
        config={"max_steps": 2},
        reward_funcs=[later if asynchronous else verifier],
        questions=data,
        allocator=Uniform(8),
    )
    history = trained(built)
    assert [row["allocation/failed"] for row in history[:2]] == [0, 8] and len(calls) == 2 + 4
    assert built.allocation.allocator is not None and history[1]["allocation/groups"] == 3
    (told,) = [r for r in caplog.records if r.name == "apportion.trl.rewards"]
    assert "verifier raised TimeoutError: the sandbox is silent" in told.getMessage() and told.exc_info


@dataclass
class Dying:
    """A reward function that raises ``error`` in every call but its first."""

    error: Exception
    calls: list = field(default_factory=list)
    __name__ = "verifier"

    def __call__(self, prompts, completions, k, **rest):
        self.calls.append(len(prompts))
        if len(self.calls) > 1:
            raise self.error
        return [mark(text, each) for text, each in zip(completions, k, strict=True)]


def test_a_dead_function_is_called_for_three_prompts_and_then_given_up(make):
    verifier = Dying(ConnectionError("refused"))
    built = make(AllocatedGRPOTrainer, config={"max_steps": 3}, reward_funcs=[verifier], allocator=Uniform(8))
    with pytest.raises(RewardsFailedError, match=r"none for 64 of the latest 96 .* verifier raised Conn.*: refused"):
        built.train()
    assert verifier.calls == [32, 32, 8, 8, 8, 32, 8, 8, 8]


def test_a_list_of_another_length_ends_a_run_in_its_first_call_only(make):
    def verifier(prompts, completions, k, **rest):
        calls.append(len(prompts))
        return [1.0] * (len(prompts) - (len(calls) == wrong[0]))

    for call, ends in ((1, True), (2, False)):
        calls, wrong = [], [call]
        built = make(AllocatedGRPOTrainer, config={"max_steps": 2}, reward_funcs=[verifier], allocator=Uniform(8))
        if ends:
            with pytest.raises(ValueError, match="a reward for each of 32 completions, got 31 rewards"):
                built.train()
        else:
            assert trained(built)[1]["allocation/failed"] == 0  # each prompt was scored alone


def test_a_bad_reward_in_an_evaluation_does_not_end_a_run(make):
    def verifier(prompts, completions, k, **rest):
        return ["broken" if int(prompts[0][:3]) >= 100 else 1.0 for _ in prompts]

    config = {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    built = make(
        AllocatedGRPOTrainer,
        config=config,
        reward_funcs=[verifier],
        eval_dataset=make_questions(4),
        allocator=Uniform(8),
    )
    assert "eval_loss" in str(trained(built))


def test_a_poison_prompt_is_skipped_after_a_resume_and_stays_in_the_count(make, tmp_path):
    """Its function raises in the first call of the resumed run, which would end a new one."""
    verifier = Dying(ValueError("poison"))

    def built(steps):
        config = {"max_steps": steps, "save_strategy": "steps", "save_steps": 1, "output_dir": str(tmp_path)}
        return make(
            AllocatedGRPOTrainer, config=config, reward_funcs=[verifier], allocator=Uniform(8), failed_rewards="drop"
        )

    first = built(2)
    first.train()
    second = built(3)
    second.train(resume_from_checkpoint=True)
    assert first._failures.number == 32 and second._failures.number == 64


def test_reinforce_ada_trains_on_no_more_rows_than_it_promises_if_rewards_fail(make):
    """The case of the issue: 30% of the rewards were None, and 43 rows were trained on instead of 16."""
    draws = np.random.default_rng(0)
    judge = Judge(none=lambda text: draws.random() < 0.3)
    watch = Watch(judge)
    allocator = ReinforceAda(keep=4)
    config = {"num_generations": 4, "per_device_train_batch_size": 4, "max_steps": 3}
    trained(watch.on(make(AllocatedGRPOTrainer, config=config, reward_funcs=[judge], allocator=allocator)))
    assert allocator.size(4).kept == 16
    assert all(len(step.rows) <= 16 for step in watch.steps)
    assert any(call.score is None for step in watch.steps for call in step.calls)


def test_a_share_is_that_of_the_latest_completions():
    count = FailureCount(FailedRewards(), ["judge"])
    ok, bad = torch.zeros(100, 1), torch.full((100, 1), NAN)
    for _ in range(5):
        count.add([False] * 100, ok, ["a"] * 100)
    count.add([True] * 100, bad, ["a"] * 100)
    with pytest.raises(RewardsFailedError, match=f"got none for 200 of the latest {WINDOW} .*judge returned None.*'b'"):
        count.add([True] * 100, bad, ["b"] * 100)
    assert count.number == 200


def test_a_few_failures_in_the_first_rounds_end_no_run():
    count = FailureCount(FailedRewards(), ["judge"])
    for _ in range(LEAST - 1):
        count.add([True], torch.tensor([[NAN]]), ["a"])
    with pytest.raises(RewardsFailedError):
        count.add([True], torch.tensor([[NAN]]), ["a"])


def test_a_number_bounds_the_whole_run():
    count = FailureCount(FailedRewards(share=1.0, number=3), ["a", "b"])
    for _ in range(3):
        count.add([True, False], torch.tensor([[NAN, 1.0], [0.0, 0.0]]), ["x", "y"])
        count.add([False], torch.tensor([[1.0, 1.0]]), ["z"])
    with pytest.raises(RewardsFailedError, match=r"\(at most 3 may have none\); a returned None, .* the prompt 'x'"):
        count.add([True], torch.tensor([[NAN, 1.0]]), ["x"])


def test_rows_fail_without_any_score_or_without_a_verdict():
    scores = torch.tensor([[NAN, NAN], [NAN, 1.0], [1.0, NAN], [1.0, 1.0]])
    assert failed_rows(scores, None).tolist() == [True, False, False, False]
    assert failed_rows(scores, scores[:, 0]).tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"retries": -1}, "retries must be an integer of at least 0, got -1"),
        ({"share": 1.5}, "share must be between 0 and 1, got 1.5"),
        ({"number": -1}, "number must be an integer of at least 0, got -1"),
    ],
)
def test_settings_that_cannot_work_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        FailedRewards(**given)


def test_what_are_no_settings_of_failed_rewards_is_refused_before_a_model_is_loaded(make):
    with pytest.raises(ValueError, match=r"failed_rewards must be one of stop, drop, retry, abort, got 0\.5; or give"):
        make(AllocatedGRPOTrainer, policy="no/such-model", allocator=Uniform(8), failed_rewards=0.5)


def test_the_number_of_failures_in_the_run_is_said_if_it_is_what_is_bounded():
    count = FailureCount(FailedRewards(share=1.0, number=1), ["judge"])
    count.add([True], torch.tensor([[NAN]]), ["x"])
    with pytest.raises(RewardsFailedError, match="judge returned None, 2 times in this run, for example"):
        count.add([True], torch.tensor([[NAN]]), ["x"])


def test_an_unknown_name_is_refused(make):
    with pytest.raises(ValueError, match="failed_rewards must be one of stop, drop, retry, abort, got 'ignore'"):
        make(AllocatedGRPOTrainer, allocator=Uniform(8), failed_rewards="ignore")


def test_what_a_reward_function_logged_before_it_raised_is_dropped(make):
    """The exception is in the second round. Its columns would otherwise fall on rows of the first one."""
    seen = []

    def logging(completions, k, log_extra, log_metric, **rest):
        log_extra("text", list(completions))
        log_metric("calls", float(len(seen)))
        seen.append(len(completions))
        if len(seen) == 2:
            raise TimeoutError("the verifier is busy")
        return [mark(text, each) for text, each in zip(completions, k, strict=True)]

    config = {"max_steps": 1, "log_completions": True}
    built = make(AllocatedGRPOTrainer, config=config, reward_funcs=[logging], allocator=hora(), failed_rewards="retry")
    history = trained(built)
    first, second, *alone = seen
    assert sum(alone) == second and list(built._logs["extra"]["text"]) == list(built._logs["completion"])
    assert history[0]["calls"] == pytest.approx(np.mean(np.arange(2, len(seen))) * second / (first + second))


def test_reward_functions_are_called_again_in_an_evaluation_too(make):
    calls = []

    def flaky(prompts, completions, k, **rest):
        if int(prompts[0][:3]) < 100:
            return [mark(text, each) for text, each in zip(completions, k, strict=True)]
        calls.append(len(prompts))
        if len(calls) == 1:
            raise TimeoutError("the verifier is busy")
        return [None if len(calls) == 2 and i % 2 else 1.0 for i in range(len(prompts))]

    config = {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    questions = make_questions(1, extra=100)
    built = make(
        AllocatedGRPOTrainer,
        config=config,
        reward_funcs=[flaky],
        allocator=Uniform(8),
        failed_rewards="retry",
        eval_dataset=questions,
    )
    history = trained(built)
    assert calls[0] == calls[1] > calls[2] and len(calls) == 3
    assert [row["eval_reward"] for row in history if "eval_reward" in row] == [1.0]


def test_the_verdict_of_a_prompt_is_that_of_the_function_which_judges_it(caplog):
    """Two tasks, and a reward for the format. What fails while nothing is known of the tasks stays failed."""
    count = FailureCount(FailedRewards(), ["math", "code", "format"])
    outage = torch.tensor([[NAN, NAN, 1.0], [NAN, 1.0, 1.0]])
    assert failed_rows(outage, count.judged(outage, 0)).tolist() == [True, True] and not caplog.records
    both = torch.tensor([[1.0, NAN, 1.0], [NAN, 0.0, 1.0], [NAN, 1.0, 0.0], [NAN, NAN, 1.0]])
    for _ in range(2):
        judged = count.judged(both, 0)
        assert judged.nan_to_num(-1).tolist() == [1.0, 0.0, 1.0, -1.0]
        assert failed_rows(both, judged).tolist() == [False, False, False, True]
    assert [record.getMessage() for record in caplog.records] == [
        "the verdict of a prompt is that of the function which judges it: math gives None for some prompts, whose "
        "completions are correct if code is above 0"
    ]
    beside = torch.tensor([[1.0, 1.0, 1.0]])
    count.judged(beside, 0)
    assert failed_rows(both, count.judged(both, 0)).tolist() == [False, True, True, True]
    assert count.judged(both, None) is None


@pytest.mark.parametrize("rule", [HORA, AR3PO, ReinforceAda, DAPO], ids=lambda rule: rule.name)
def test_rewards_of_minus_one_and_one_are_verdicts(make, rule):
    seen = {}
    for wrong in (0.0, -1.0):
        judge = Judge(mark=lambda text, k, wrong=wrong: 1.0 if mark(text, k) else wrong)
        built = make(AllocatedGRPOTrainer, reward_funcs=[judge], allocator=rule(), config={"scale_rewards": "group"})
        history = trained(built)
        seen[wrong] = [(row["allocation/n_max"], row["allocation/observed_success"]) for row in history[:3]]
        assert max(success for _, success in seen[wrong]) > 0
    assert [n for n, _ in seen[0.0][:1]] == [n for n, _ in seen[-1.0][:1]] and seen[0.0][0] == seen[-1.0][0]


def test_rewards_of_three_values_are_graded(make):
    judge = Judge(mark=lambda text, k: (-1.0, 0.0, 1.0)[len(text) % 3])
    built = make(AllocatedGRPOTrainer, reward_funcs=[judge], allocator=hora())
    with pytest.raises(ValueError, match=r"rewards must be 0 or 1 for hora, .* got -1.0; set verdict='judge'"):
        built.train()
