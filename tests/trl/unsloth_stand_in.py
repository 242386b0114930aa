"""A stand-in for the trainer that Unsloth puts in the place of ``trl.GRPOTrainer``. It is not Unsloth's code.

It does what unsloth 2026.10.9 does as far as an allocator is concerned:

- log-probabilities [N, M + T] begin where the shortest prompt of the call ends;
- ``max_left_pad`` [N, 1] comes with each generated batch;
- the loss takes the mask of completions from token ids, reads log-probabilities at the places that follow from M, and
  fails if M is not the one of its rows.
"""

import torch
from trl import GRPOTrainer

from tests.trl.tiny import PAD


def left_padding(prompt_mask):
    return prompt_mask.size(1) - prompt_mask.sum(1)


class UnslothStandIn(GRPOTrainer):
    """``GRPOTrainer`` with Unsloth's columns. ``windows`` records M of the micro-batches that it trained on."""

    _plain = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.windows = []

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        most = int(left_padding(output["prompt_mask"]).max())
        output["max_left_pad"] = torch.tensor([[most]] * len(output["prompt_ids"]))
        return output

    def _get_per_token_logps_and_entropies(self, model, ids, mask, logits_to_keep, *args, **kwargs):
        found = super()._get_per_token_logps_and_entropies(model, ids, mask, logits_to_keep, *args, **kwargs)
        if self._plain:
            return found
        padding = left_padding(mask[:, : ids.size(1) - logits_to_keep])
        most, plain = int(padding.max()), found[0]
        wide = torch.full((len(plain), most + logits_to_keep), -99.0)  # what is no completion must not be read
        for i, row in enumerate(plain):
            start = most - int(padding[i])
            wide[i, start : start + logits_to_keep] = row
        return (wide, *found[1:])

    def compute_loss(self, model, inputs, *args, **kwargs):
        self._plain = True
        try:
            return super().compute_loss(model, self._plain_columns(inputs), *args, **kwargs)
        finally:
            self._plain = False

    def _plain_columns(self, inputs):
        found = dict(inputs)
        most, width = int(found.pop("max_left_pad")[0]), found["completion_ids"].size(1)
        padding = left_padding(found["prompt_mask"])
        self.windows.append(most)
        assert (inputs["max_left_pad"] == most).all() and most >= int(padding.max())
        if not self.mask_truncated_completions:
            found["completion_mask"] = (found["completion_ids"] != PAD).long()
        for key in ("old_per_token_logps", "ref_per_token_logps"):
            if key in found:
                wide = found[key]
                assert wide.size(1) == most + width
                starts = (most - padding).tolist()
                rows = [row[start : start + width] for row, start in zip(wide, starts, strict=True)]
                found[key] = torch.stack(rows)
        return found
