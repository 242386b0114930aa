"""Where completions come from: any OpenAI-compatible server, or a recording."""

from apportion.samplers.client import Client, seed_of
from apportion.samplers.completion import Completion, EndpointError, Usage
from apportion.samplers.endpoint import Endpoint
from apportion.samplers.recorded import Recorded

__all__ = ["Client", "Completion", "Endpoint", "EndpointError", "Recorded", "Usage", "seed_of"]
