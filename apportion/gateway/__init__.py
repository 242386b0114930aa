"""A gateway: an OpenAI-compatible endpoint that answers each request by an early-stopped vote upstream.

``read_request`` says what a request asks for (``body``), ``Upstream`` asks for single completions (``upstream``), a
``RunningVote`` counts them until the rule stops (``vote``), and ``respond`` sends the winner (``replies``).
``make_app`` puts them together, behind a ``VoteQueue``, and ``serve`` runs the application.
"""

from apportion.gateway.settings import GatewayLimits, GatewaySettings, UpstreamSettings

__all__ = ["GatewayLimits", "GatewaySettings", "UpstreamSettings"]
