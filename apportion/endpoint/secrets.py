"""Find secrets among settings, so that they can be kept out of files and errors."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

SHORTEST = 6
"""Length of the shortest text that is treated as a secret in an error. Shorter texts are parts of other words."""

_WORDS = """key apikey token secret password passwd passphrase pwd auth authorization bearer credential credentials
signature sig cookie session"""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

HIDDEN = "secret"
"""What is written in the place of a secret."""


def is_secret_name(name: str) -> bool:
    """Return whether the value of a field with this name looks like a secret.

    >>> [is_secret_name(name) for name in ("api_key", "apiKey", "X-Auth-Token", "max_tokens", "tokenizer")]
    [True, True, True, False, False]
    """
    return any(word.lower() in _WORDS.split() for word in _WORD.findall(name))


def hide_secrets(value: Any) -> Any:
    """Return ``value`` with the word secret in place of each text in a field with a secret name, at any depth.

    The same text in any other field is hidden too, if it has ``SHORTEST`` characters.

    >>> hide_secrets({"top_k": 20, "api_key": "12345678", "options": {"token": ["abc"]}, "user": "12345678"})
    {'top_k': 20, 'api_key': 'secret', 'options': {'token': ['secret']}, 'user': 'secret'}
    """
    known = {text for text in _secrets(value) if len(text) >= SHORTEST}

    def hide(leaf: Any, secret: bool) -> Any:
        hidden = (secret or (isinstance(leaf, str) and leaf in known)) and not isinstance(leaf, int | float | None)
        return HIDDEN if hidden else leaf

    return _changed(value, hide)


def secret_texts(values: Iterable[str], extra_body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the texts to hide in errors: ``values``, their words, and the secrets in ``extra_body``.

    >>> secret_texts(["Bearer abcdefgh"], {"api_key": "12345678", "seed": "12345678"})
    ('12345678', 'Bearer', 'Bearer abcdefgh', 'abcdefgh')
    """
    texts = [*values, *_secrets(extra_body)]
    return tuple(sorted({each for text in texts for each in (text, *text.split()) if len(each) >= SHORTEST}))


def _secrets(value: Any) -> list[str]:
    """Return the texts in fields whose names look like secrets."""
    found: list[str] = []

    def note(leaf: Any, secret: bool) -> None:
        if secret and isinstance(leaf, str):
            found.append(leaf)

    _changed(value, note)
    return found


def _changed(value: Any, change: Callable[[Any, bool], Any], secret: bool = False) -> Any:
    """Return ``value`` with each leaf replaced by ``change``, which is told whether the field's name is secret."""
    if isinstance(value, Mapping):
        return {name: _changed(each, change, secret or is_secret_name(str(name))) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_changed(each, change, secret) for each in value]
    return change(value, secret)
