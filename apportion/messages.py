"""Prompts: a text, or chat messages with a role and a text each."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from apportion.checks import encodable
from apportion.types import prompt_id
from apportion.untrusted import shown

Messages = tuple[Mapping[str, str], ...]
"""A prompt as chat messages, each with a ``role`` and a ``content``."""

ROLES = ("system", "developer", "user", "assistant")
MOST_MESSAGES = 10_000


def make_messages(value: Any) -> Messages:
    """Return the chat messages in ``value``, a list of objects with a role and a text as content.

    Raises ValueError for anything else, and if no message is the user's or has a text.

    >>> make_messages([{"role": "user", "content": "6 x 7?"}])
    ({'role': 'user', 'content': '6 x 7?'},)
    """
    if isinstance(value, str) or not isinstance(value, Sequence) or not 0 < len(value) <= MOST_MESSAGES:
        raise ValueError(f"chat messages must be a list of 1 to {MOST_MESSAGES:,}, got {shown(value)}; correct it")
    messages = tuple(map(_message, value))
    if not any(message["role"] == "user" and message["content"].strip() for message in messages):
        raise ValueError('chat messages must hold a text of the role "user", got none; add the question')
    return messages


def _message(value: Any) -> dict[str, str]:
    """Return one message. Fields that are None are left out, because Parquet gives each row all fields."""
    given = {name: field for name, field in value.items() if field is not None} if isinstance(value, Mapping) else {}
    role, content = given.get("role"), given.get("content")
    if given.keys() != {"role", "content"} or role not in ROLES or not isinstance(content, str):
        raise ValueError(
            f"a chat message must have a role ({', '.join(ROLES)}), a content that is a text, and nothing else, got "
            f"{shown(value)}; correct it"
        )
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a prompt must be Unicode, got {content[error.start]!r} in it; correct it") from error
    return {"role": role, "content": content}


def chat_messages(prompt: str | Messages, system: str | None = None) -> list[dict[str, str]]:
    """Return the messages to send for ``prompt``: a text is one message of the user, and ``system`` comes first.

    Raises ValueError if ``system`` is given and the messages have one already.

    >>> chat_messages("6 x 7?", "Be brief.")
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': '6 x 7?'}]
    """
    messages = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else prompt
    if system is not None and (own := [each for each in messages if each["role"] in ("system", "developer")]):
        raise ValueError(
            f"a prompt must have one system message, got {shown(own[0]['content'])} in it and the setting system; "
            "leave one of them out"
        )
    first = [] if system is None else [{"role": "system", "content": system}]
    return [{name: encodable(text) for name, text in message.items()} for message in (*first, *messages)]


def prompt_text(prompt: str | Messages) -> str:
    r"""Return a prompt as one text, to show it or to measure its length: contents with an empty line between them.

    >>> prompt_text(({"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 x 7?"}))
    'Be brief.\n\n6 x 7?'
    """
    return prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)


def prompt_hash(prompt: str | Messages) -> str:
    """Return the ``prompt_id`` of a text, or that of the canonical JSON of chat messages.

    >>> prompt_hash("6 x 7?") == prompt_id("6 x 7?") != prompt_hash(({"role": "user", "content": "6 x 7?"},))
    True
    """
    if isinstance(prompt, str):
        return prompt_id(prompt)
    content = json.dumps([dict(message) for message in prompt], sort_keys=True, separators=(",", ":"))
    return prompt_id(content, dataset="messages")
