"""Outputs of an agent loop as small plain data: what is kept of a rollout that a later step may train on again."""

from typing import Any

import numpy as np
from verl.experimental.agent_loop import AgentLoopOutput

TOKEN_FIELDS = {
    "prompt_ids": np.int32,
    "response_ids": np.int32,
    "response_mask": np.bool_,
    "response_logprobs": np.float32,  # as verl writes them
}


def pack_output(output: AgentLoopOutput) -> dict[str, Any]:
    """Return the fields of ``output``, with its lists of a value per token as arrays, the mask in bits.

    A token takes 8.1 bytes with log-probabilities, and 4.1 without. The log-probabilities are kept whenever verl
    returned them, because all rows of a batch must have the same columns.
    """
    found = output.model_dump()
    arrays: dict[str, Any] = {
        key: np.asarray(found[key], kind) for key, kind in TOKEN_FIELDS.items() if found.get(key) is not None
    }
    return found | arrays | {"response_mask": np.packbits(arrays["response_mask"])}


def unpack_output(packed: dict[str, Any]) -> AgentLoopOutput:
    """Return the output that ``pack_output`` was given."""
    mask = np.unpackbits(packed["response_mask"], count=len(packed["response_ids"]))
    lists = {key: packed[key].tolist() for key in TOKEN_FIELDS if packed.get(key) is not None}
    return AgentLoopOutput(**packed | lists | {"response_mask": mask.tolist()})
