"""verl itself, without this package, on the platform that its tests run it on."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from tests.verl import harness
from tests.verl.cpu.assets import make_policy, make_tokenizer
from tests.verl.cpu.sampling import Request, sample
from tests.verl.cpu.script import CALL
from tests.verl.runs import STOCK


def content(rows):
    return sorted((row["index"], row["responses"], row["advantages"]) for row in rows)


def test_a_stock_run_completes(train):
    done = train(STOCK)
    assert done.status == 0, done.output
    assert [step["step"] for step in done.metrics] == [0, 1, 2]
    assert all(step["actor/grad_norm"] > 0 for step in done.metrics[1:])
    # what the server says of its samples is what the trainer finds for them
    assert all(step["training/rollout_probs_diff_max"] < 1e-5 for step in done.metrics[1:])


def test_every_row_of_a_step_is_recorded_with_the_advantage_of_its_group(train):
    for step in (1, 2):
        rows = train(STOCK).rows(step)
        assert len(rows) == 16 and len({row["key"] for row in rows}) == 16
        rewards = [sum(row["rm_scores"]) for row in rows]
        assert set(rewards) == {0.0, 1.0}
        for row, reward in zip(rows, rewards, strict=True):
            group = [other for each, other in zip(rows, rewards, strict=True) if each["uid"] == row["uid"]]
            expected = (reward - sum(group) / 4) * 4 / 3
            assert row["advantages"] == pytest.approx([expected] * len(row["responses"]), abs=1e-6)


def test_the_weights_after_each_step_are_kept(train):
    states = [torch.load(train(STOCK).weights(step)) for step in (0, 1, 2)]
    first = make_policy().state_dict()
    assert all(torch.equal(states[0][name], first[name]) for name in first)
    assert not any(torch.equal(states[0]["lm_head.weight"], state["lm_head.weight"]) for state in states[1:])


@pytest.mark.soak  # the tests that compare runs to the last bit would pass with any seed; steps of one run differ above
def test_another_seed_gives_other_rollouts(train, tmp_path):
    """Equal seeds give equal ones: test_equality. An ended run also leaves no process."""
    other = train((*STOCK, "actor_rollout_ref.rollout.seed=1", "trainer.total_training_steps=1"), folder=tmp_path)
    assert_no_process_is_left(tmp_path)
    assert content(other.rows(1)) != content(train(STOCK).rows(1))


@pytest.mark.soak  # two ranks of stock verl; ours are compared in test_allocators
def test_two_ranks_sample_and_train_as_one_does(train):
    one, two = train(STOCK), train(STOCK, ranks=2)
    assert two.status == 0, two.output
    assert content(two.rows(1)) == content(one.rows(1))
    norms = [[step["actor/grad_norm"] for step in done.metrics[1:]] for done in (one, two)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


@pytest.mark.soak  # test_modes has the same loop under an allocator
def test_the_tool_loop_masks_the_reply_of_the_tool(train, assets):
    done = train((STOCK[0], *harness.TOOLS, f"data.train_files={assets}/tools.parquet"))
    assert done.status == 0, done.output
    tokenizer = make_tokenizer()
    reply, called = "\n<|im_start|>tool\nafter 7 comes 8<|im_end|>\n<|im_start|>assistant\n", 0
    for row in done.rows(1):
        text = tokenizer.decode(row["responses"])
        masked = tokenizer.decode([i for i, m in zip(row["responses"], row["response_mask"], strict=True) if not m])
        if text.startswith(CALL):
            called += 1
            assert row["num_turns"] == 4
            assert masked == reply and text.startswith(CALL + reply) and len(text) > len(CALL + reply)
        else:
            assert row["num_turns"] == 2 and masked == ""
    assert called == 4  # of 4 questions 2 call, every second time


@pytest.mark.soak  # test_failed_runs and test_command read the status and the words of runs that fail
def test_a_failed_run_has_a_status_and_says_why(train):
    done = train(["algorithm.adv_estimator=unheard_of"])
    assert done.status not in (0, -9) and "unheard_of" in done.output


def working_in(folder):
    """Return the processes whose working directory is ``folder``, as it is for all processes of a run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += [process.name] if (process / "cwd").readlink() == folder else []
        except OSError:  # it has ended, or is not ours
            continue
    return found


def assert_no_process_is_left(folder):
    deadline = time.monotonic() + 120  # on a busy machine Ray takes long to see that its driver is gone
    while left := working_in(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_no_process_of_a_killed_run_is_left(train, tmp_path):
    done = train(STOCK, folder=tmp_path, until=tmp_path / "records" / "trainer")
    assert done.status == -9, done.output
    assert_no_process_is_left(tmp_path)


SCRIPT = """
import atexit, os, sys
print(sys.argv[1:], os.environ["GIVEN"], os.getcwd(), sys.stdin.read())
sys.stderr.write(str(__name__ == "__main__"))
atexit.register(print, "ended")
raise SystemExit(3)
"""


@pytest.mark.parametrize("way", [["-u", "it.py"], ["-m", "it"]])
def test_a_warm_python_runs_scripts_and_modules_as_python_does(warm, tmp_path, way):
    (tmp_path / "it.py").write_text(SCRIPT)
    environment = harness.environment(tmp_path) | {"GIVEN": "given"}
    done = subprocess.run(
        [warm, *way, "a", "b"], input="typed", cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout == f"['a', 'b'] given {tmp_path} typed\nended\n"
    assert (done.stderr, done.returncode) == ("True", 3)


def test_a_warm_python_ends_by_the_signal_that_it_is_sent(warm, tmp_path):
    (tmp_path / "it.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)")
    with subprocess.Popen(
        [warm, "it.py"], cwd=tmp_path, stdout=subprocess.PIPE, env=harness.environment(tmp_path)
    ) as it:
        assert it.stdout.readline() == b"begun\n"
        it.terminate()
        assert it.wait(timeout=20) == -signal.SIGTERM


def test_a_row_is_sampled_alike_in_any_batch():
    policy = make_policy().double().eval()
    requests = [Request(tuple(range(6, 9 + i)), i, 1.0, 6, frozenset({3})) for i in range(5)]
    together = sample(policy, requests, pad=0)
    for request, (tokens, log_probs) in zip(requests, together, strict=True):
        [(alone, its_log_probs)] = sample(policy, [request], pad=0)
        assert alone == tokens and its_log_probs == pytest.approx(log_probs, abs=1e-9)
        logits = policy(torch.tensor([[*request.prompt, *tokens]])).logits[0, len(request.prompt) - 1 : -1]
        direct = torch.log_softmax(logits, -1)[torch.arange(len(tokens)), torch.tensor(tokens)]
        assert log_probs == pytest.approx(direct.tolist(), abs=1e-9)


def test_tokens_are_sampled_as_often_as_their_probability_says():
    policy, prompt = make_policy().double().eval(), (6, 7, 8)
    requests = [Request(prompt, seed, 0.5, 1, frozenset()) for seed in range(4000)]
    tokens = torch.tensor([tokens[0] for tokens, _ in sample(policy, requests, pad=0)])
    with torch.no_grad():
        chances = torch.softmax(policy(torch.tensor([prompt])).logits[0, -1] / 0.5, -1)
    found = torch.bincount(tokens, minlength=len(chances)) / len(requests)
    assert (found - chances).abs().max() < 5 * (chances.max() / len(requests)).sqrt()
