"""A Tinker service in this process: it samples from a tiny policy and trains it with real gradients on the CPU.

It implements what the training loop calls. A sample is a function of the weights, the prompt and how often that prompt
was asked for under these weights, so runs can be compared and resumed.
"""

import copy
import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import tinker
import torch

from apportion.lab.policy.network import new_policy


class Ready:
    """A result that can be awaited, or read at once."""

    def __init__(self, value):
        self.value = value

    def __await__(self):
        return self.value
        yield

    def result(self):
        return self.value


@dataclass
class Service:
    """Weights by path, and everything that was asked of the service.

    ``trained`` has the datums of each ``forward_backward``, and ``sampled`` (number of updates, prompt, completion) of
    each sample. ``failing`` is the number of the optimizer step, over all
    runs, that raises.
    """

    trained: list = field(default_factory=list)
    sampled: list = field(default_factory=list)
    saved: dict = field(default_factory=dict)
    failing: int | None = None
    client: object = None

    def __call__(self, **settings):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    async def create_lora_training_client(self, model, rank, user_metadata):
        self.client = TrainingClient(self)
        return self.client

    async def create_training_client_from_state_with_optimizer(self, path, user_metadata):
        self.client = TrainingClient(self)
        self.client.load(self.saved[path])
        return self.client

    def create_rest_client(self):
        async def delete(path):
            del self.saved[path]

        return SimpleNamespace(delete_checkpoint_from_tinker_path=delete)

    def weights(self):
        """The trained parameters as one vector."""
        return torch.nn.utils.parameters_to_vector(self.client.policy.parameters()).detach()


class TrainingClient:
    """A policy, its Adam, and the number of its updates."""

    def __init__(self, service):
        self.service, self.policy, self.updates = service, new_policy(0), 0
        self.adam = torch.optim.Adam(self.policy.parameters(), betas=(0.9, 0.95), eps=1e-8)

    def load(self, state):
        weights, adam, self.updates = copy.deepcopy(state)
        self.policy.load_state_dict(weights)
        self.adam.load_state_dict(adam)

    def state(self):
        return copy.deepcopy((self.policy.state_dict(), self.adam.state_dict(), self.updates))

    def forward_backward(self, data, loss_fn, loss_fn_config=None):
        assert loss_fn == "importance_sampling"
        self.service.trained.append(list(data))
        outputs = []
        for datum in data:
            inputs = torch.tensor([datum.model_input.to_ints()])
            targets = datum.loss_fn_inputs["target_tokens"].to_torch()
            logprobs = self.policy(inputs).logits[0].log_softmax(-1)[torch.arange(len(targets)), targets]
            ratios = (logprobs - datum.loss_fn_inputs["logprobs"].to_torch()).exp()
            (-(ratios * datum.loss_fn_inputs["advantages"].to_torch()).sum()).backward()
            outputs.append({"logprobs": tinker.TensorData.from_torch(logprobs.detach())})
        return Ready(tinker.ForwardBackwardOutput("losses", outputs))

    def optim_step(self, parameters):
        if self.service.failing == self.updates:
            raise ConnectionError("the service is gone")
        for group in self.adam.param_groups:
            group["lr"] = parameters.learning_rate
        self.adam.step()
        self.adam.zero_grad()
        self.updates += 1
        return Ready(tinker.OptimStepResponse())

    def save_state(self, name, ttl_seconds=None):
        return self._saved(f"state/{name}")

    def save_weights_for_sampler(self, name, ttl_seconds=None):
        return self._saved(f"sampler/{name}")

    def create_sampling_client(self, path, record_stability_info=False):
        return Ready(SamplingClient(self.service, self.service.saved[path]))

    async def save_weights_and_get_sampling_client(self, record_stability_info=False):
        return SamplingClient(self.service, self.state())

    def _saved(self, path):
        self.service.saved[path] = self.state()
        return Ready(SimpleNamespace(path=path))


class SamplingClient:
    """Samples from a copy of the weights."""

    def __init__(self, service, state):
        self.service, self.policy, self.updates = service, new_policy(0), state[2]
        self.policy.load_state_dict(state[0])
        self.asked = Counter()

    async def sample(self, prompt, num_samples, sampling_params):
        tokens = prompt.to_ints()
        number, key = self.asked[tuple(tokens)], json.dumps([self.updates, tokens])
        self.asked[tuple(tokens)] += 1
        seed = int.from_bytes(hashlib.blake2b(f"{key} {number}".encode(), digest_size=7).digest())
        generator, sampled, logprobs = torch.Generator().manual_seed(seed), [], []
        with torch.no_grad():
            for _ in range(sampling_params.max_tokens):
                logits = self.policy(torch.tensor([tokens + sampled])).logits[0, -1]
                token = int(torch.multinomial(logits.softmax(-1), 1, generator=generator))
                sampled.append(token)
                logprobs.append(float(logits.log_softmax(-1)[token]))
        self.service.sampled.append((self.updates, tuple(tokens), tuple(sampled)))
        sequence = tinker.SampledSequence(
            stop_reason="length",
            sequence_id=f"{key} {number}",
            tokens_np=np.array(sampled, np.int32),
            logprobs_np=np.array(logprobs, np.float32),
        )
        return tinker.SampleResponse(sequences=[sequence])
