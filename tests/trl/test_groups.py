"""The rows that the loss sees in ``trainer.train()``, for every allocator.

Rollouts are identified by their prompt and tokens, as the reward function and the loss saw them. Groups, rewards and
advantages are computed again from these alone, by the rules of the allocators' papers.
"""

import functools

import pytest
import torch

from apportion import AR3PO, DAPO, Uniform
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from tests.builders import LABEL_FREE, LABELLED
from tests.rules import small
from tests.trl.tiny import (
    LENGTH,
    TERMS,
    Judge,
    Row,
    Watch,
    assert_gradient,
    assert_rows,
    direct_gradient,
    gradient_of,
    group_advantages,
    log_probabilities,
    made,
    make_policy,
    make_questions,
    make_tokenizer,
    mark,
    trained,
)

QUESTIONS = make_questions(16)
EASE_OF = {row["prompt"]: row["k"] for row in QUESTIONS}
TOKENS_OF = {prompt: tuple(make_tokenizer()(prompt)["input_ids"]) for prompt in EASE_OF}
KEEP, GROUP, RETAINED, PILOTS, COMMITS = 5, 6, 8, 4, 5

VOTES = {"min_samples": RETAINED, "max_samples": 18}
OWN = {
    "ar3po": {"stages": 3, "rollouts_per_stage": 3, "reuse": "none"},
    "dapo": {"rollouts_per_prompt": GROUP, "draw": 3, "max_draws": 3},
    "pilot_commit": {"pilots": PILOTS, "commits": COMMITS, "draw": 3, "max_rounds": 3, "max_age": 0},
    "reinforce_ada": {"rollouts_per_round": 3, "keep": KEEP},
    "neyman": {"predictor": "score_moments"},
    "voting": {"min_samples": 1, "max_samples": 9},
    "ttrl": {"min_samples": RETAINED, "max_samples": 11},
    "optpo": {**VOTES, "wave": "free"},
    "shared_votes": {**VOTES, "samples_per_prompt": 9.5},
}
"""Settings that these tests need; other rules have their small ones, with 8 rollouts a prompt."""
CASES = {
    "grpo": (AllocatedGRPOTrainer, {"max_steps": 5}),
    "rloo": (AllocatedRLOOTrainer, {"max_steps": 5}),
    "grpo, two updates a batch": (
        AllocatedGRPOTrainer,
        {"max_steps": 10, "steps_per_generation": 8, "per_device_train_batch_size": 4},
    ),
}
"""16 questions, 4 per batch: the last batch repeats those of the first."""
EACH = ["grpo", *(pytest.param(case, marks=pytest.mark.slow) for case in CASES if case != "grpo")]


def rewarded(calls):
    """Return rewards of ``calls``, scored again from the text."""
    rewards = [mark(call.text, EASE_OF[call.prompt]) for call in calls]
    assert rewards == [call.score for call in calls]
    return rewards


def whole_group(trainer, calls):
    advantages = group_advantages(trainer, rewarded(calls))
    return [(call, advantage, True) for call, advantage in zip(calls, advantages, strict=True)]


def balanced(trainer, calls):
    """Reinforce-Ada: the baseline is over all rollouts; the loss has the first of both kinds, half of them correct."""
    right = [i for i, call in enumerate(calls) if call.score]
    wrong = [i for i, call in enumerate(calls) if not call.score]
    number = min(len(right), KEEP // 2)
    number = max(number, min(len(right), KEEP - len(wrong)))
    kept = {*right[:number], *wrong[: KEEP - number]}
    return [(call, advantage, i in kept) for i, (call, advantage, _) in enumerate(whole_group(trainer, calls))]


def mixed_only(groups, trainer, wanted=4):
    """DAPO: the first mixed groups, as many as the batch had prompts at first."""
    mixed = [calls for calls in groups if 0 < sum(rewarded(calls)) < len(calls)][:wanted]
    assert all(len(calls) == GROUP for calls in groups)
    return [part for calls in mixed for part in whole_group(trainer, calls)]


def committed_only(groups, trainer, wanted=4):
    """Pilot-Commit: prompts with commits, as many as the batch had at first; their pilots passed."""
    passed = [calls for calls in groups if 1 / 8 <= sum(rewarded(calls[:PILOTS])) / PILOTS <= 3 / 4]
    committed = [calls for calls in groups if len(calls) > PILOTS]
    assert len(committed) <= wanted and all(calls in passed for calls in committed)
    assert {len(calls) for calls in groups} <= {PILOTS, PILOTS + COMMITS}
    return [part for calls in committed for part in whole_group(trainer, calls)]


def expected_of(name, trainer, groups):
    if name == "dapo":
        parts = mixed_only(groups, trainer)
    elif name == "pilot_commit":
        parts = committed_only(groups, trainer)
    else:
        rule = balanced if name == "reinforce_ada" else whole_group
        parts = [part for calls in groups for part in rule(trainer, calls)]
    return [Row(TOKENS_OF[call.prompt], call.ids, advantage) for call, advantage, kept in parts if kept]


def run(make, case, allocator, config=(), **given):
    judge = Judge()
    trainer, settings = CASES[case]
    watch = Watch(judge)
    given = {"reward_funcs": [judge], "questions": QUESTIONS} | given
    built = make(trainer, config=settings | dict(config), **given, allocator=allocator)
    trained(watch.on(built))
    return built, watch


@pytest.fixture(scope="module")
def reusing(policy, tmp_path_factory):
    """Return a function that gives the run of AR3PO with ``reuse``, at a high learning rate. Tests share the runs."""

    @functools.cache
    def finish(reuse, case):
        make = functools.partial(made, policy=policy, folder=tmp_path_factory.mktemp("run"))
        allocator = AR3PO(stages=2, rollouts_per_stage=2, reuse=reuse)
        return run(make, case, allocator, {"learning_rate": 3e-3}, questions=QUESTIONS.select([1, 2, 3, 10]))

    return finish


def assert_chunks(step, rows, built):
    """Micro-batches have equally many rows, at most those that TRL was told, and no more masked rows than necessary."""
    steps, sizes = built.args.steps_per_generation, [len(chunk["advantages"]) for chunk in step.chunks]
    assert max(sizes) <= built.args.per_device_train_batch_size and max(sizes) - min(sizes) <= 1
    assert sum(sizes) == steps * max(1, -(-rows // steps))
    assert step.padding == sum(sizes) - rows


def each(rules, telling):
    """Return every rule under "grpo", and the ``telling`` ones in all cases. ``make soak`` runs every pair."""
    return [
        pytest.param(
            name,
            case,
            marks=[pytest.mark.slow] * (case != "grpo") + [pytest.mark.soak] * (case != "grpo" and name not in telling),
        )
        for name in sorted(rules)
        for case in CASES
    ]


@pytest.mark.parametrize(("name", "case"), each(LABELLED, ("vip", "ar3po", "dapo")))
def test_the_loss_sees_true_groups(make, name, case):
    allocator = small(name, 8, **OWN.get(name, {}))
    built, watch = run(make, case, allocator)
    assert len(watch.steps) == 5
    ragged = False
    for step in watch.steps:
        groups = list(step.by_prompt.values())
        expected = expected_of(name, built, groups)
        assert_rows(step.rows, expected)
        assert_chunks(step, len(expected), built)
        full = [int(chunk["completion_mask"].any(dim=1).sum()) for chunk in step.chunks]
        assert max(full) - min(full) <= 1  # masked rows are spread over all micro-batches
        ragged |= len({len(calls) for calls in groups}) > 1 or len(groups) != 4
        if allocator.size(4).exact:
            assert len(expected) == 32 and not step.padding
    assert ragged == (name not in ("uniform", "even"))


def read(text):
    """Return the kind of the first character, so that there are few answers."""
    return None if not text or text[0] in "+ " else "number" if text[0].isdigit() else "letter"


@pytest.mark.parametrize(("name", "case"), each(LABEL_FREE, ("optpo",)))
def test_label_free_rewards_are_agreement_with_the_most_frequent_answer(make, name, case):
    built, watch = run(make, case, small(name, 8, **OWN.get(name, {})), extract=read)
    labelled = 0
    for step in watch.steps:
        expected = []
        for calls in step.by_prompt.values():
            answers = [read(call.text) for call in calls]
            numbers, letters = answers.count("number"), answers.count("letter")
            if numbers == letters:
                continue
            labelled += 1
            label = "number" if numbers > letters else "letter"
            retained = calls if name == "voting" else calls[:RETAINED]
            advantages = group_advantages(built, [float(read(call.text) == label) for call in retained])
            expected += [Row(TOKENS_OF[c.prompt], c.ids, a) for c, a in zip(retained, advantages, strict=True)]
        assert_rows(step.rows, expected)
        assert_chunks(step, len(expected), built)
    assert labelled > 0


@pytest.mark.parametrize("case", EACH)
@pytest.mark.parametrize("reuse", ["stop_gradient", "recompute", "replay"])
def test_a_response_of_an_earlier_step_replaces_the_last_wrong_one(reusing, reuse, case):
    built, watch = reusing(reuse, case)
    earlier, times = {}, 0
    for step in watch.steps:
        rows, expected = step.rows, []
        for prompt, calls in step.by_prompt.items():
            absent = earlier.get(prompt, set()) - {call.ids for call in calls}
            if any(call.score for call in calls) or not absent:
                expected += [Row(TOKENS_OF[prompt], c.ids, a) for c, a, _ in whole_group(built, calls)]
                continue
            times += 1
            found = [row.ids for row in rows if row.prompt == TOKENS_OF[prompt] and row.ids in absent]
            assert len(found) == (reuse != "stop_gradient")
            advantages = group_advantages(built, [0.0] * (len(calls) - 1) + [1.0])
            ids = [*(call.ids for call in calls[:-1]), *found]
            expected += [Row(TOKENS_OF[prompt], each, a) for each, a in zip(ids, advantages, strict=False)]
        assert_rows(rows, expected)
        assert_chunks(step, len(expected), built)
        for call in step.calls:
            if call.score:
                earlier.setdefault(call.prompt, set()).add(call.ids)
    assert times > 0


@pytest.mark.parametrize(
    ("loss", "beta"),
    [("grpo", 2.0), ("dr_grpo", 2.0), ("dapo", 2.0), ("sapo", 0.0), ("luspo", 0.0), ("vespo", 0.0), ("cispo", 0.0)],
)
def test_masked_rows_change_no_gradient(make, policy, loss, beta):
    """It is checked at the second update, because the reference then differs from the policy."""
    judge = Judge()
    watch = Watch(judge)
    settings = {"loss_type": loss, "beta": beta, "learning_rate": 3e-2, "max_steps": 2, "max_grad_norm": 0.0}
    settings["use_bias_correction_kl"] = False
    if loss == "luspo":
        settings["importance_sampling_level"] = "sequence"
    if loss == "cispo":
        settings["epsilon_high"] = 5.0  # its ratios are cut there, and are 1 here
    allocator = AR3PO(stages=3, rollouts_per_stage=3, reuse="none")
    built = make(AllocatedGRPOTrainer, config=settings, reward_funcs=[judge], allocator=allocator)
    trained(watch.on(built))
    (before, _), (weights, gradient) = watch.updates
    assert watch.steps[1].padding
    expected = direct_gradient(weights, watch.steps[1].rows, TERMS[loss], before, beta)
    assert_gradient(gradient, expected)
    if beta:
        without = direct_gradient(weights, watch.steps[1].rows, TERMS[loss])
        assert (without - expected).norm() > 0.02 * expected.norm()


FEW = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "num_generations": 2, "max_steps": 1}
"""Eight micro-batches for four prompts: if two groups are kept, half of the micro-batches are all masked."""


@pytest.mark.parametrize("loss", ["bnpo", "grpo", "dapo"])
def test_micro_batches_that_are_all_masked_change_no_gradient(make, loss):
    """bnpo is a mean over micro-batches, and with one row each a mean over rows."""
    judge = Judge()
    watch = Watch(judge)
    allocator = DAPO(rollouts_per_prompt=2, target=2, max_draws=4)
    settings = FEW | {"loss_type": loss, "max_grad_norm": 0.0}
    trained(watch.on(make(AllocatedGRPOTrainer, config=settings, reward_funcs=[judge], allocator=allocator)))
    (weights, gradient), (step,) = watch.updates[0], watch.steps
    assert step.padding == 4 == len(step.rows)
    assert_gradient(gradient, direct_gradient(weights, step.rows, TERMS["grpo" if loss == "bnpo" else loss]))


def digits(completion, k):
    return sum(character.isdigit() for character in completion) / LENGTH


def others(completion, k):
    return 2 - 2 * digits(completion, k)  # with half the weight every total is 2


@pytest.mark.parametrize("allocator", [Uniform(), DAPO(rollouts_per_prompt=8, max_draws=2)])
def test_equal_totals_of_unequal_rewards_teach_if_each_is_normalised(make, allocator):
    """GDPO: 2 x + y is 2 everywhere, and 2 z(x) + z(y) = z(x) is not. If the sum is normalised nothing is learned."""
    logged = {}
    for aggregation in ("normalize_then_sum", "sum_then_normalize"):
        settings = {"multi_objective_aggregation": aggregation, "reward_weights": [1.0, 0.5], "max_steps": 1}
        functions = [Judge(digits, name="digits"), Judge(others, name="others")]
        built = make(AllocatedGRPOTrainer, config=settings, reward_funcs=functions, allocator=allocator)
        logged[aggregation] = trained(built)[0]
    gdpo, grpo = logged["normalize_then_sum"], logged["sum_then_normalize"]
    assert gdpo["allocation/informative"] == 1 and gdpo["grad_norm"] > 0
    assert grpo.get("allocation/informative", 0) == 0 and grpo["grad_norm"] == 0


def test_rewards_that_rloo_clips_to_one_value_are_dropped(make):
    settings = {"reward_clip_range": (0.0, 0.5), "max_steps": 1}
    above = Judge(lambda completion, k: 1 + digits(completion, k), name="above")
    allocator = DAPO(rollouts_per_prompt=8, max_draws=2)
    built = make(AllocatedRLOOTrainer, config=settings, reward_funcs=[above], allocator=allocator)
    assert trained(built)[0]["allocation/mixed"] == 0


def test_masked_rows_do_not_change_the_entropy_bonus(make):
    gradients = {}
    for coefficient in (0.0, 1.0):
        judge = Judge()
        watch = Watch(judge)
        allocator = DAPO(rollouts_per_prompt=2, target=2, max_draws=4)
        settings = FEW | {"max_grad_norm": 0.0, "entropy_coef": coefficient}
        try:
            built = make(AllocatedGRPOTrainer, config=settings, reward_funcs=[judge], allocator=allocator)
        except TypeError:
            pytest.skip("this version of TRL has no entropy bonus")
        trained(watch.on(built))
        gradients[coefficient] = watch.updates[0][1]
    (step,), (weights, _) = watch.steps, watch.updates[0]
    policy = make_policy()
    policy.load_state_dict(weights)
    total = 0.0
    for row in step.rows:
        logits = policy(torch.tensor([[*row.prompt, *row.ids]])).logits[0, len(row.prompt) - 1 : -1]
        distribution = torch.log_softmax(logits, -1)
        total = total + (distribution.exp() * distribution).sum(-1).mean() / len(step.rows)
    total.backward()
    assert_gradient(gradients[1.0] - gradients[0.0], gradient_of(policy))


def test_masked_rows_change_no_gradient_of_rloo(make):
    judge = Judge()
    watch = Watch(judge)
    allocator = AR3PO(stages=3, rollouts_per_stage=2, reuse="none")
    settings = {"max_steps": 1, "max_grad_norm": 0.0}
    trained(watch.on(make(AllocatedRLOOTrainer, config=settings, reward_funcs=[judge], allocator=allocator)))
    assert watch.steps[0].padding
    weights, gradient = watch.updates[0]
    assert_gradient(gradient, direct_gradient(weights, watch.steps[0].rows, TERMS["rloo"]))


@pytest.mark.parametrize("trainer", [AllocatedGRPOTrainer, AllocatedRLOOTrainer])
@pytest.mark.parametrize("weighting", ["rollout", "token"])
def test_a_batch_without_groups_changes_no_weights(make, trainer, weighting):
    """No completion is correct, so dynamic sampling finds no mixed group."""
    judge = Judge(mark=lambda completion, k: 0.0)
    watch = Watch(judge)
    config = {"max_steps": 2, "max_grad_norm": 0.0}
    allocator = DAPO(rollouts_per_prompt=4, draw=2, max_draws=2)
    built = make(trainer, config=config, reward_funcs=[judge], allocator=allocator, weighting=weighting)
    history = trained(watch.on(built))
    for step in watch.steps:
        assert len(step.calls) == 24 and step.rows == [] and step.padding == 4
    assert all(row["loss"] == 0.0 for row in history if "loss" in row)
    assert all(gradient.abs().max() == 0.0 for _, gradient in watch.updates) and len(watch.updates) == 2


def probabilities(weights, prompt, ids):
    policy = make_policy()
    policy.load_state_dict(weights)
    with torch.no_grad():
        return log_probabilities(policy, prompt, ids)


@pytest.mark.parametrize("case", EACH)
@pytest.mark.parametrize("reuse", ["recompute", "replay"])
def test_reused_rows_have_the_probabilities_of_their_own_step_or_of_this_one(reusing, reuse, case):
    """Rows of this step have the probabilities of this step in both cases."""
    _built, watch = reusing(reuse, case)
    before = [weights for weights, _ in watch.updates][:: 2 if "two" in case else 1]
    sampled_in, reused = {}, 0
    for number, step in enumerate(watch.steps):
        now = {(TOKENS_OF[call.prompt], call.ids): number for call in step.calls}
        for chunk in step.chunks:
            for i, own in enumerate(chunk["completion_mask"].bool()):
                prompt = tuple(chunk["prompt_ids"][i][chunk["prompt_mask"][i].bool()].tolist())
                row = prompt, tuple(chunk["completion_ids"][i][own].tolist())
                if not own.any():
                    continue
                reused += row not in now
                then = now.get(row, number if reuse == "recompute" else sampled_in.get(row))
                expected = probabilities(before[then], *row)
                if "old_logps" in chunk:
                    torch.testing.assert_close(chunk["old_logps"][i], expected.sum(), rtol=1e-4, atol=1e-4)
                elif "old_per_token_logps" in chunk:
                    torch.testing.assert_close(chunk["old_per_token_logps"][i][own], expected, rtol=1e-4, atol=1e-4)
                else:  # TRL then takes the current ones
                    assert reuse == "recompute" and case == "grpo"
        sampled_in |= now
    assert reused
