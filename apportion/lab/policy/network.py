"""The policy network: a tiny Qwen2, and the log-probabilities of given completions."""

from collections.abc import Sequence

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from apportion.lab.world.task import EOS, PAD, VOCABULARY


def new_policy(seed: int) -> Qwen2ForCausalLM:
    """Return an untrained policy of 200,640 parameters, equal for equal seeds. The global random state is kept.

    Weights start at a standard deviation of 0.1, because at the usual 0.02 a model of this width stays at chance.

    >>> sum(parameter.numel() for parameter in new_policy(0).parameters())
    200640
    """
    config = Qwen2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.1,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).eval()


def completion_logprobs(
    policy: Qwen2ForCausalLM,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    temperature: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each completion token [N, T], float32, and the mask [N, T] of existing tokens.

    ``prompts`` and ``completions`` are rows of token ids, and T is the longest completion. Log-probabilities outside
    the mask are 0. They are differentiable, and ``temperature`` divides the logits. Rows are padded on the right, so
    causal attention needs no mask. There is one forward pass.
    """
    if not prompts:
        return torch.zeros(0, 0), torch.zeros(0, 0, dtype=torch.bool)
    tokens, places, mask = pack_rows(prompts, completions)
    distributions = distributions_at(policy, tokens, places, temperature)
    own = distributions.gather(-1, tokens.gather(1, places)[:, :, None])[:, :, 0]
    return own.masked_fill(~mask, 0.0), mask


def distributions_at(
    policy: Qwen2ForCausalLM, tokens: torch.Tensor, places: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Return the log-probabilities [N, T, V] of the vocabulary at ``places`` [N, T] of the rows ``tokens`` [N, L].

    Both are as ``pack_rows`` returns them. There is one forward pass.
    """
    logits = policy(input_ids=tokens[:, :-1], use_cache=False).logits
    chosen = logits.gather(1, (places - 1)[:, :, None].expand(-1, -1, logits.shape[-1]))
    return (chosen / temperature).log_softmax(-1)


def pack_rows(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows of prompt and completion as token ids [N, L], padded on the right, and the completions' places.

    These are the place [N, T] of each completion token in its row and the mask [N, T] of existing tokens. T is the
    longest completion. The logits for place i are at i - 1.
    """
    rows = [(*prompt, *completion) for prompt, completion in zip(prompts, completions, strict=True)]
    length = max(map(len, rows))
    tokens = torch.tensor([(*row, *(PAD,) * (length - len(row))) for row in rows])
    lengths = torch.tensor([len(completion) for completion in completions])[:, None]
    starts = torch.tensor([len(prompt) for prompt in prompts])[:, None]
    steps = torch.arange(int(lengths.max()))
    return tokens, (starts + steps).clamp(max=length - 1), steps < lengths
