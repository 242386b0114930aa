import pickle

import numpy as np
import pytest
from verl.experimental.agent_loop import AgentLoopOutput

from apportion.allocators.response_store import completion_bytes
from apportion.verl.coordinator.messages import WrittenRollout
from apportion.verl.packed_outputs import pack_output, unpack_output

PLAIN = {"prompt_ids": [1, 151_000], "response_ids": [7, 8, 9], "response_mask": [1, 0, 1], "metrics": {}}
OUTPUTS = {
    "without log-probabilities": PLAIN,
    "with all that a later step needs": PLAIN
    | {
        "response_logprobs": [-0.5, -0.25, -0.125],
        "reward_score": 1.0,
        "num_turns": 2,
        "extra_fields": {"reward_extra_info": {"acc": 1.0}},
    },
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_comes_back_as_it_was(name):
    """Log-probabilities as verl trains on them."""
    output = AgentLoopOutput(**OUTPUTS[name])
    assert unpack_output(pack_output(output)) == output
    output = AgentLoopOutput(**PLAIN, response_logprobs=[-0.1, -0.2, -0.3])
    before, after = (each.as_dict()["rollout_log_probs"] for each in (output, unpack_output(pack_output(output))))
    assert before.tolist() == after.tolist()


def test_a_packed_output_takes_a_fifth_of_the_memory():
    ids = list(range(100_000, 101_000))
    output = AgentLoopOutput(
        prompt_ids=ids, response_ids=ids, response_mask=[1] * 1000, response_logprobs=[-i / 7 for i in ids], metrics={}
    )
    assert 5 * completion_bytes(pack_output(output)) < completion_bytes(output.model_dump())


def test_a_rollout_that_was_sent_has_arrays_of_its_own():
    """A store keeps it for long. Views of the message that it came in would keep the whole message in memory."""
    ids = np.arange(1000, dtype=np.int32)
    written = WrittenRollout(b"digest", "uid", 2, (3,), outputs=({"response_ids": ids[:3], "num_turns": 2},))
    message = pickle.dumps([written, bytes(1_000_000)], pickle.HIGHEST_PROTOCOL)
    kept = pickle.loads(message)[0]
    assert kept.outputs[0]["response_ids"].tolist() == [0, 1, 2] and kept.outputs[0]["num_turns"] == 2
    base = kept.outputs[0]["response_ids"].base
    assert (base is None or memoryview(base).nbytes == 12) and kept == written
