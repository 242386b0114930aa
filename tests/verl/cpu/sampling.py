"""Rollouts of a small policy: each row draws from a generator of its own, so that who shares its batch is no matter."""

import hashlib
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Request:
    """A rollout to sample.

    Attributes:
        prompt: the prompt's tokens.
        seed: of this rollout's own generator.
        temperature: at 0 the likeliest token is taken.
        tokens: at most so many are sampled.
        stops: none is sampled after one of these.
        forced: what the rollout is in place of what the policy would sample, where not empty.
    """

    prompt: tuple
    seed: int
    temperature: float
    tokens: int
    stops: frozenset
    forced: tuple = ()


def seed_of(*parts):
    """A seed from what identifies a rollout; the same in every process."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big")


def _draws(request):
    return torch.rand(request.tokens, generator=torch.Generator().manual_seed(request.seed), dtype=torch.float64)


def _padded(prompts, pad):
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


def _chosen(request, logits, draw):
    """The next token: the inverse of the distribution function at the draw."""
    if request.temperature == 0:
        return int(logits.argmax())
    chances = torch.softmax(logits / request.temperature, -1).cumsum(-1)
    return min(int(torch.searchsorted(chances, draw * chances[-1], right=True)), len(logits) - 1)


@torch.no_grad()
def sample(policy, requests, pad):
    """Tokens and their log-probabilities (at the request's temperature), a pair of lists for each request.

    ``policy`` computes in double precision: what is sampled then does not turn on how rows are padded and batched.
    """
    draws = [_draws(request) for request in requests]
    found = [([], []) for _ in requests]
    going = set(range(len(requests)))
    ids, mask = _padded([request.prompt for request in requests], pad)
    past = None
    while going:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = policy(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=past, use_cache=True)
        past, following = out.past_key_values, torch.full((len(requests), 1), pad)
        for i in sorted(going):
            request, (tokens, log_probs), logits = requests[i], found[i], out.logits[i, -1]
            step = len(tokens)
            token = request.forced[step] if request.forced else _chosen(request, logits, draws[i][step])
            tokens.append(token)
            log_probs.append(float(torch.log_softmax(logits / (request.temperature or 1.0), -1)[token]))
            following[i] = token
            if len(tokens) >= (len(request.forced) or request.tokens) or (
                token in request.stops and not request.forced
            ):
                going.remove(i)
        ids, mask = following, torch.cat([mask, torch.ones_like(following)], 1)
    return found
