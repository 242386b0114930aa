"""Copies of a small Llama that train side by side on one card: every weight is [K, ...], and K runs share each kernel.

All rows of all copies begin with the same solved examples, which are computed once for a copy. ``tests/benchmarks``
compares outputs and gradients with those of transformers on the whole texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu

BETAS, EPSILON = (0.9, 0.999), 1e-8
KeysValues = list[tuple[Tensor, Tensor]]


class Sampled(NamedTuple):
    """Sampled tokens, which of them count, their log-probabilities, and the entropy at each: [K, B, T]."""

    tokens: Tensor
    mask: Tensor
    logprobs: Tensor
    entropy: Tensor


@dataclass
class _Read:
    """What a stack has read: the keys and values [K, B, H, S, D] of each layer, and which tokens are real [K, B, S]."""

    keys_values: KeysValues
    mask: Tensor


class StackedLlama:
    """``copies`` of ``model``, a ``LlamaForCausalLM`` with tied embeddings, with AdamW's state but no weight decay."""

    def __init__(self, model, copies, examples, device="cpu"):
        self.config = model.config
        self.copies, self.device = copies, device
        self.examples = torch.tensor([list(examples)], device=device).expand(copies, 1, -1)
        named = model.named_parameters()
        self.weights = {
            name.removeprefix("model."): p.detach().to(device).expand(copies, *p.shape).clone().requires_grad_()
            for name, p in named
        }
        self._moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in self.weights.items()}
        self._steps = 0
        width = self.config.hidden_size // self.config.num_attention_heads
        places = torch.arange(0, width, 2, device=device) / width
        self._frequencies = 1.0 / self.config.rope_parameters["rope_theta"] ** places

    @torch.no_grad()
    def sample(self, prompts, uniforms, ends):
        """Sample at temperature 1 after prompts [K][B], by ``uniforms`` [K, B, T], until one of the tokens ``ends``."""
        shared, (ids, mask) = self._examples(), self._padded(prompts)
        stops = torch.tensor(sorted(ends), device=self.device)
        going = torch.ones(ids.shape[:2], dtype=torch.bool, device=self.device)
        read: _Read | None = None
        found: list[tuple[Tensor, ...]] = []
        for uniform in uniforms.to(self.device).unbind(-1):
            hidden, read = self._layers(ids, mask, shared, read)
            logprobs = self._logits(hidden[:, :, -1]).log_softmax(-1)
            chances = logprobs.exp()
            reached = chances.cumsum(-1)
            token = torch.searchsorted(reached, (uniform[..., None] * reached[..., -1:])).clamp(
                max=chances.shape[-1] - 1
            )
            own = logprobs.gather(-1, token)[..., 0]
            entropy = -(chances * logprobs.nan_to_num(neginf=0.0)).sum(-1)
            token = token[..., 0]
            found.append((token, going, own, entropy))
            ids, mask = token[..., None], going[..., None]
            going = going & ~torch.isin(token, stops)
            if not going.any():
                break
        return Sampled(*(torch.stack(each, -1) for each in zip(*found, strict=True)))

    def logprobs(self, prompts, sampled):
        """Return the log-probabilities [K, B, T] of sampled tokens, with a gradient; 0 where none counts."""
        ids, mask = self._padded(prompts)
        whole = torch.cat([ids, sampled.tokens], -1), torch.cat([mask, sampled.mask], -1)
        hidden, _ = self._layers(*whole, self._examples())
        length = sampled.tokens.shape[-1]
        found = self._logits(hidden[:, :, -length - 1 : -1]).log_softmax(-1)
        return found.gather(-1, sampled.tokens[..., None])[..., 0] * sampled.mask

    def step(self, loss, rates):
        """Take one step of Adam down the gradient of ``loss``, a sum over copies, with a rate for each copy."""
        gradients = torch.autograd.grad(loss, list(self.weights.values()))
        self._steps += 1
        rate = torch.tensor(rates, device=self.device) / (1 - BETAS[0] ** self._steps)
        correction = (1 - BETAS[1] ** self._steps) ** 0.5
        with torch.no_grad():
            for (name, weight), gradient in zip(self.weights.items(), gradients, strict=True):
                mean, square = self._moments[name]
                mean.lerp_(gradient, 1 - BETAS[0])
                square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
                size = square.sqrt().div_(correction).add_(EPSILON)
                weight.sub_(size.reciprocal_().mul_(mean).mul_(rate.view(-1, *[1] * (weight.dim() - 1))))

    def _padded(self, prompts):
        """Return tokens and mask [K, B, L] of prompts, padded on the left."""
        length = max(len(each) for own in prompts for each in own)
        ids = [[[0] * (length - len(each)) + list(each) for each in own] for own in prompts]
        mask = [[[False] * (length - len(each)) + [True] * len(each) for each in own] for own in prompts]
        return torch.tensor(ids, device=self.device), torch.tensor(mask, device=self.device)

    def _examples(self):
        """Return the keys and values [K, H, P, D] of the solved examples in each layer."""
        _, read = self._layers(self.examples, torch.ones_like(self.examples, dtype=torch.bool))
        return [(keys[:, 0], values[:, 0]) for keys, values in read.keys_values]

    def _logits(self, hidden):
        """Return logits [K, ..., V] of hidden states [K, ..., C]."""
        return _linear(hidden, self.weights["embed_tokens.weight"])

    def _layers(self, ids, mask, shared=None, read=None):
        """Return the last hidden states [K, B, L, C] of tokens [K, B, L], and all that was read."""
        known = mask if read is None else torch.cat([read.mask, mask], -1)
        length = ids.shape[-1]
        before = 0 if shared is None else self.examples.shape[-1]
        angles = (before + known.cumsum(-1)[..., -length:] - 1).clamp(min=0)[..., None, None] * self._frequencies
        turned = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
        order = torch.arange(known.shape[-1], device=self.device)
        causal = order <= order[-length:, None]
        allowed = (known[:, :, None] & causal)[:, :, None, None]  # [K, B, 1, 1, L, S]
        embedding = self.weights["embed_tokens.weight"]
        copy = torch.arange(self.copies, device=self.device)[:, None, None]
        hidden, kept = embedding[copy, ids], KeysValues()
        for place in range(self.config.num_hidden_layers):
            own = {name: self.weights[f"layers.{place}.{name}.weight"] for name in _NAMES}
            normed = self._normed(hidden, own["input_layernorm"])
            q, k, v = (
                _linear(normed, own[f"self_attn.{part}_proj"]).unflatten(-1, (-1, 2 * len(self._frequencies)))
                for part in "qkv"
            )
            k, v = _rotated(k, *turned).transpose(2, 3), v.transpose(2, 3)
            if read is not None:
                k, v = (torch.cat(pair, 3) for pair in zip(read.keys_values[place], (k, v), strict=True))
            kept.append((k, v))
            attended = _attention(_rotated(q, *turned), k, v, allowed, None if shared is None else shared[place])
            hidden = hidden + _linear(attended, own["self_attn.o_proj"])
            normed = self._normed(hidden, own["post_attention_layernorm"])
            gated = silu(_linear(normed, own["mlp.gate_proj"])) * _linear(normed, own["mlp.up_proj"])
            hidden = hidden + _linear(gated, own["mlp.down_proj"])
        return self._normed(hidden, self.weights["norm.weight"]), _Read(kept, known)

    def _normed(self, hidden, weight):
        size = torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return hidden * size * weight[:, None, None]


_NAMES = (
    *("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


def _linear(x, weight):
    """Return x [K, ..., I] times the weights [K, O, I] of each copy."""
    return torch.bmm(x.flatten(1, -2), weight.transpose(1, 2)).unflatten(1, x.shape[1:-1])


def _rotated(x, cosine, sine):
    """Return x [K, B, L, H, D] turned by its places."""
    left, right = x.chunk(2, -1)
    return x * cosine + torch.cat([-right, left], -1) * sine


def _attention(q, k, v, allowed, shared):
    """Return what queries [K, B, L, Q, D] read from own keys [K, B, H, S, D] and from shared ones [K, H, P, D]."""
    copies, rows, length, _, width = q.shape
    heads = k.shape[2]
    q = q.unflatten(3, (heads, -1)).permute(0, 1, 3, 4, 2, 5) * width**-0.5  # [K, B, H, G, L, D]
    together = q.flatten(3, 4)
    scores = (together @ k.transpose(-1, -2)).unflatten(3, (-1, length))
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    if shared is None:
        found = scores.softmax(-1).flatten(3, 4) @ v
    else:
        across = together.transpose(1, 2).flatten(2, 3)  # [K, H, B G L, D]
        common = (across @ shared[0].transpose(-1, -2)).unflatten(2, (rows, -1)).transpose(1, 2)
        share = torch.cat([common, scores.flatten(3, 4)], -1).softmax(-1)
        first, own = share.split([common.shape[-1], scores.shape[-1]], -1)
        found = own @ v + (first.transpose(1, 2).flatten(2, 3) @ shared[1]).unflatten(2, (rows, -1)).transpose(1, 2)
    return found.unflatten(3, (-1, length)).permute(0, 1, 4, 2, 3, 5).reshape(copies, rows, length, -1)
