"""verl itself, without this package, on the platform that its tests run it on."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from tests.verl import harness
from tests.verl.cpu.assets import make_policy
from tests.verl.cpu.sampling import Request, sample
from tests.verl.runs import STOCK, rloo


def test_a_stock_run_is_recorded_with_its_weights_and_the_advantages_of_each_group(train):
    done = train(STOCK)
    assert done.status == 0, done.output
    assert [step["step"] for step in done.metrics] == [0, 1, 2]
    assert all(step["actor/grad_norm"] > 0 for step in done.metrics[1:])
    # what the server says of its samples is what the trainer finds for them
    assert all(step["training/rollout_probs_diff_max"] < 1e-5 for step in done.metrics[1:])
    for step in (1, 2):
        rows = done.rows(step)
        assert len(rows) == len({row["key"] for row in rows}) == 16
        assert {sum(row["rm_scores"]) for row in rows} == {0.0, 1.0}
        for uid in {row["uid"] for row in rows}:
            group = [row for row in rows if row["uid"] == uid]
            for row, expected in zip(group, rloo([sum(row["rm_scores"]) for row in group]), strict=True):
                assert row["advantages"] == pytest.approx([expected] * len(row["responses"]), abs=1e-6)
    states = [torch.load(done.weights(step)) for step in (0, 1, 2)]
    first = make_policy().state_dict()
    assert all(torch.equal(states[0][name], first[name]) for name in first)
    assert not any(torch.equal(states[0]["lm_head.weight"], state["lm_head.weight"]) for state in states[1:])


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


SCRIPT = """
import atexit, os, sys
print(sys.argv[1:], os.environ["GIVEN"], os.getcwd(), sys.stdin.read())
sys.stderr.write(str(__name__ == "__main__"))
atexit.register(print, "ended")
raise SystemExit(3)
"""


def test_a_warm_python_runs_scripts_and_modules_as_python_does_and_ends_by_a_signal(warm, tmp_path):
    (tmp_path / "it.py").write_text(SCRIPT)
    given = {"cwd": tmp_path, "env": harness.environment(tmp_path) | {"GIVEN": "given"}}
    for way in (["-u", "it.py"], ["-m", "it"]):
        done = subprocess.run([warm, *way, "a", "b"], input="typed", capture_output=True, text=True, **given)
        assert done.stdout == f"['a', 'b'] given {tmp_path} typed\nended\n"
        assert (done.stderr, done.returncode) == ("True", 3)
    (tmp_path / "it.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)")
    with subprocess.Popen([warm, "it.py"], stdout=subprocess.PIPE, **given) as it:
        assert it.stdout.readline() == b"begun\n"
        it.terminate()
        assert it.wait(timeout=20) == -signal.SIGTERM


def test_a_row_is_sampled_alike_in_any_batch_and_as_often_as_its_probability_says():
    policy = make_policy().double().eval()
    requests = [Request(tuple(range(6, 9 + i)), i, 1.0, 6, frozenset({3})) for i in range(5)]
    together = sample(policy, requests, pad=0)
    for request, (tokens, log_probs) in zip(requests, together, strict=True):
        [(alone, its_log_probs)] = sample(policy, [request], pad=0)
        assert alone == tokens and its_log_probs == pytest.approx(log_probs, abs=1e-9)
        logits = policy(torch.tensor([[*request.prompt, *tokens]])).logits[0, len(request.prompt) - 1 : -1]
        direct = torch.log_softmax(logits, -1)[torch.arange(len(tokens)), torch.tensor(tokens)]
        assert log_probs == pytest.approx(direct.tolist(), abs=1e-9)

    requests = [Request((6, 7, 8), seed, 0.5, 1, frozenset()) for seed in range(4000)]
    tokens = torch.tensor([tokens[0] for tokens, _ in sample(policy, requests, pad=0)])
    with torch.no_grad():
        chances = torch.softmax(policy(torch.tensor([[6, 7, 8]])).logits[0, -1] / 0.5, -1)
    found = torch.bincount(tokens, minlength=len(chances)) / len(requests)
    assert (found - chances).abs().max() < 5 * (chances.max() / len(requests)).sqrt()
