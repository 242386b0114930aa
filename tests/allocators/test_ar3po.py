from collections import Counter

import pytest
from scipy import stats

from apportion import AR3PO, Plan, Prompt, Rollout
from tests.builders import finished, make_batch, make_prompts

A, B, C = make_prompts(3)


def right(text):
    return Rollout(True, completion=text)


def wrong(*texts):
    return [Rollout(False, completion=text) for text in texts]


def batch_of(*pairs):
    """Return a batch of one round from pairs of a prompt and its rollouts."""
    return finished([prompt for prompt, _ in pairs], [rollouts for _, rollouts in pairs])


def remembering(*texts, **settings):
    """Return an allocator that saw these correct responses to prompt A, one per step."""
    allocator = AR3PO(**settings)
    for text in texts:
        allocator.observe(batch_of((A, [right(text), *wrong("w")])))
    return allocator


FAILED = batch_of((A, wrong("x", "y", "z", "w")))


# Adaptive rollout


def test_resuming_in_the_middle_of_a_stage_asks_for_the_rest_of_it():
    batch = make_batch([[0], [0, 0, 0, 0, 0], [1], [0] * 8])
    assert AR3PO(stages=2, rollouts_per_stage=4).plan(batch) == Plan([3, 3, 0, 0])


# Response reuse


@pytest.mark.parametrize(
    ("reuse", "completions", "keep", "recompute"),
    [
        ("stop_gradient", "xyzr", [True, True, True, False], [False] * 4),
        ("recompute", "xyzr", [True] * 4, [False, False, False, True]),
        ("replay", "xyzr", [True] * 4, [False] * 4),
        ("none", "xyzw", [True] * 4, [False] * 4),
    ],
)
def test_an_earlier_correct_response_replaces_an_incorrect_one(reuse, completions, keep, recompute):
    allocator = remembering("r", reuse=reuse)
    [group] = allocator.groups(FAILED)
    assert [rollout.completion for rollout in group.rollouts] == [*completions]
    assert [rollout.step for rollout in group.rollouts] == [None, None, None, None if reuse == "none" else 0]
    assert group.rewards.tolist() == [0, 0, 0, reuse != "none"] and group.informative == (reuse != "none")
    assert (group.keep.tolist(), group.recompute.tolist()) == (keep, recompute)
    assert bool(allocator.state_dict()["store"]["entries"]) == (reuse != "none")


UNVERIFIED = Rollout(None, reward=None, completion="c")


@pytest.mark.parametrize(
    ("seen", "sampled", "group"),
    [
        ("r", [right("n"), *wrong("x", "y")], "nxy"),  # it has a correct response
        ("r", [*wrong("x", "y"), UNVERIFIED], "xrc"),  # only an incorrect response is replaced
        ("r", wrong("x"), "x"),  # the mixed group would hold no incorrect response, so no advantage
        ("rs", wrong("x", "s", "y"), "xsr"),  # the verifier may run out of time on a response that it once accepted
        ("r", wrong("r", "x"), "rx"),
    ],
)
def test_the_response_that_is_replaced(seen, sampled, group):
    [found] = remembering(*seen).groups(batch_of((A, sampled), (B, [])))
    assert [rollout.completion for rollout in found.rollouts] == [*group]
    assert found.keep.all() == (group != "xrc" and group != "xsr")


def test_responses_of_another_prompt_or_of_this_batch_are_not_reused():
    allocator = remembering("r")
    failed = batch_of((B, wrong("x", "y")), (C, [right("s")]), (C, wrong("x", "y")))
    assert all(rollout.step is None for group in allocator.groups(failed) for rollout in group.rollouts)
    allocator.observe(failed)
    assert [r.step for r in allocator.groups(failed)[2].rollouts] == [None, 1]


def test_only_fresh_correct_responses_are_remembered():
    allocator = AR3PO(entries_per_prompt=10)
    reused = Rollout(True, completion="old", step=0)
    unverified = Rollout(None, completion="cut off")
    allocator.observe(batch_of((A, [right("r"), right("r"), right("s"), reused, unverified, *wrong("x")])))
    assert [values["completion"] for _, values in allocator.state_dict()["store"]["entries"]] == ["r", "s"]


def test_the_draw_is_even_and_every_rank_makes_the_same():
    prompts = [Prompt(f"question {q}") for q in range(1200)]
    ranks = [AR3PO(seed=5), AR3PO(seed=5)]
    drawn = []
    for allocator in ranks:
        for text in "rst":
            allocator.observe(batch_of(*((prompt, [right(text)]) for prompt in prompts)))
        groups = allocator.groups(batch_of(*((prompt, wrong("x", "y")) for prompt in prompts)))
        drawn.append([group.rollouts[1].completion for group in groups])
    assert drawn[0] == drawn[1]
    assert stats.chisquare(list(Counter(drawn[0]).values())).pvalue > 0.01
    assert ranks[0].groups(batch_of((prompts[7], wrong("x", "y"))))[0].rollouts[1].completion == drawn[0][7]


def test_the_draw_differs_by_seed_and_by_step():
    def drawn(seed, steps):
        allocator = remembering("r", "s", "t", "u", seed=seed)
        for _ in range(steps):
            allocator.observe(batch_of((B, wrong("x"))))
        return allocator.groups(FAILED)[0].rollouts[3].completion

    assert len({drawn(seed, 0) for seed in range(12)}) > 1
    assert len({drawn(0, steps) for steps in range(12)}) > 1


# Memory


def test_the_bounds_of_the_store_are_the_allocators():
    allocator = AR3PO(entries_per_prompt=2, entries=3)
    for prompt, text in [(A, "1"), (B, "2"), (B, "3"), (B, "4"), (C, "5")]:
        allocator.observe(batch_of((prompt, [right(text)])))
    assert [
        (id, values["completion"], values["step"]) for id, values in allocator.state_dict()["store"]["entries"]
    ] == [(B.id, "3", 2), (B.id, "4", 3), (C.id, "5", 4)]


def test_a_state_of_other_settings_is_refused():
    own = {"entries": 9, "store_bytes": 9, "entries_per_prompt": 9, "reuse": "replay", "seed": 9, "stages": 9}
    for key, value in own.items():
        with pytest.raises(ValueError, match=f"^{key} must be {value!r} to load this state of 'ar3po', got .*; use"):
            AR3PO().load_state_dict(AR3PO(**{key: value}).state_dict())
