"""Endpoints: rollouts and completions from any OpenAI-compatible server.

``Endpoint`` holds the settings, and ``Endpoint.connect`` gives a ``Client``. The client samples the completions of many
prompts at once (``client``), sends each request until it is answered (``server``), within bounds (``http``), and reads
replies (``stream``, ``reply``).
``EndpointSampler`` makes rollouts of completions, so that ``collect_async`` can run an allocator on the server.
"""

from apportion.endpoint.client import PLAIN_PROMPT, Client, seed_of
from apportion.endpoint.completion import Completion, EndpointError, Usage
from apportion.endpoint.sampler import EndpointSampler
from apportion.endpoint.settings import Endpoint
from apportion.messages import Messages

__all__ = [
    "PLAIN_PROMPT",
    "Client",
    "Completion",
    "Endpoint",
    "EndpointError",
    "EndpointSampler",
    "Messages",
    "Usage",
    "seed_of",
]
