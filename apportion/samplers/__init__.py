"""Where completions come from: any OpenAI-compatible server, or a recording."""

from apportion.samplers.client import PLAIN_PROMPT, Client, seed_of
from apportion.samplers.completion import Completion, EndpointError, Usage
from apportion.samplers.endpoint import Endpoint
from apportion.samplers.recorded import Recorded

__all__ = ["PLAIN_PROMPT", "Client", "Completion", "Endpoint", "EndpointError", "Recorded", "Usage", "seed_of"]
