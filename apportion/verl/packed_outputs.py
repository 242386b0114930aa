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
    """Return the fields of ``output``, with its lists of a value per token as arrays: a tenth of the memory."""
    found = output.model_dump()
    return found | {
        key: np.asarray(found[key], kind) for key, kind in TOKEN_FIELDS.items() if found.get(key) is not None
    }


def unpack_output(packed: dict[str, Any]) -> AgentLoopOutput:
    """Return the output that ``pack_output`` was given. Lists, which older checkpoints have, are taken as well."""
    lists = {key: np.asarray(packed[key]).tolist() for key in TOKEN_FIELDS if packed.get(key) is not None}
    return AgentLoopOutput(**packed | lists | {"response_mask": [int(own) for own in lists["response_mask"]]})
