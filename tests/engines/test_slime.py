"""slime's own rollouts, filters and checkpoints, with our data source. See CONTRIBUTING.md for how to run it.

The policy is a stand-in behind slime's ``--custom-generate-function-path``, and the router is a server without workers.
All that submits, filters, aborts and batches is slime's.
"""

import asyncio
import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import yaml

from tests.engines.outside import engine

PROMPTS, BATCH, GROUP = 40, 5, 4
RNG = random.Random(0)


@pytest.fixture(scope="module")
def slime():
    return engine("SLIME", "slime.rollout.sglang_rollout")


@pytest.fixture
def router():
    class Empty(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"workers": []}).encode())

        def log_message(self, *given): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address
    server.shutdown()
    server.server_close()
    thread.join(10)


async def generate(args, sample, sampling_params):
    """Solve question i of Q with probability i / Q, after a random time."""
    await asyncio.sleep(RNG.random() / 100)
    sample.tokens, sample.response, sample.response_length = [1, 2, 3], "1", 2
    sample.reward = float(RNG.random() < int(sample.label) / PROMPTS)
    sample.status = type(sample).Status.COMPLETED
    return sample


SETTINGS = f"""
rollout_global_dataset: true
dump_details: null
rollout_max_prompt_len: null
input_key: text
multimodal_keys: null
label_key: label
metadata_key: metadata
tool_key: null
apply_chat_template: false
apply_chat_template_kwargs: {{}}
rollout_seed: 7
rollout_shuffle: true
buffer_filter_path: null
n_samples_per_prompt: {GROUP}
rollout_batch_size: {BATCH}
over_sampling_batch_size: {BATCH + 2}
reward_key: null
group_rm: false
partial_rollout: true
sglang_server_concurrency: 4
rollout_num_engines: 2
sglang_dp_size: 1
rollout_temperature: 1.0
rollout_top_p: 1.0
rollout_top_k: -1
rollout_max_response_len: 8
rollout_stop: null
rollout_stop_token_ids: null
rollout_skip_special_tokens: true
custom_generate_function_path: tests.engines.test_slime.generate
custom_rm_path: null
dynamic_sampling_filter_path: apportion.engines.slime.keep_informative
ci_test: false
rollout_sample_filter_path: null
rollout_all_samples_process_path: null
rollout_sample_hook_path: null
data_source_path: apportion.engines.slime.chosen_prompts
custom_reward_post_process_path: apportion.engines.slime.advantages
use_distributed_post: false
use_rollout_routing_replay: false
mask_offpolicy_in_partial_rollout: false
"""
"""slime's arguments that are the same in every run."""


def settings(folder, router, **own):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder / "model")
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"text": f"{i} + 0 =", "label": str(i)}) + "\n" for i in range(PROMPTS))
    )
    of_the_run = {
        "hf_checkpoint": str(folder / "model"), "prompt_data": str(folder / "rows.jsonl"), "save": str(folder),
        "load": str(folder), "sglang_router_ip": router[0], "sglang_router_port": router[1],
    }  # fmt: skip
    return SimpleNamespace(**yaml.safe_load(SETTINGS) | of_the_run | own)


def train(slime, args, source, rollouts, asynchronous):
    """Let slime make batches, as its rollout manager does. Return the samples and their advantages."""
    from slime.rollout import fully_async_rollout
    from slime.utils.http_utils import init_http_client
    from slime.utils.misc import load_function

    type(slime.GenerateState)._instances.clear()  # a run has one event loop; here each call has its own
    init_http_client(args)
    found, asked = [], set()
    for number in range(rollouts):
        if asynchronous:
            groups = fully_async_rollout.generate_rollout_fully_async(args, number, source)
        else:
            groups = slime.generate_rollout(args, number, source).samples
        samples = [sample for group in groups for sample in group]
        found.append((samples, load_function(args.custom_reward_post_process_path)(args, samples)))
        asked |= {sample.metadata["apportion"] for sample in samples}
    if asynchronous:
        fully_async_rollout._stop_global_worker()
    return found, asked


@pytest.mark.parametrize("asynchronous", [False, True])
def test_slime_trains_on_our_prompts_and_our_state_goes_on(slime, router, tmp_path, asynchronous):
    from slime.utils.misc import load_function

    args = settings(tmp_path, router, apportion_estimator="rloo")
    source = load_function(args.data_source_path)(args)
    found, asked = train(slime, args, source, 4, asynchronous)
    assert len(asked) == 4 * BATCH <= source.groups.counts["opened"]
    for samples, (rewards, advantages) in found:
        assert len(samples) == BATCH * GROUP and rewards == [sample.reward for sample in samples]
        assert abs(sum(advantages)) < 1e-9 and any(advantages)
        if not asynchronous:  # the filter left no dead group
            assert all(advantages)

    source.get_samples(1)  # that a kill interrupts: on a slow machine the others have all ended
    source.save(3)
    lost = [group.key for group in source.groups.in_flight]
    args = settings(tmp_path, router, apportion_estimator="rloo")
    again = load_function(args.data_source_path)(args)
    again.load(3)
    opened = [group[0].metadata["apportion"] for group in again.get_samples(len(lost) + 1)]
    assert lost and opened[:-1] == lost and opened[-1] not in asked  # what was in flight comes first
    again.load(3)
    _, later = train(slime, args, again, 1, asynchronous)
    assert len(later) == BATCH and not later & asked
