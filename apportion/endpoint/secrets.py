"""Find secrets among settings, so that they can be kept out of files and errors."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

SHORTEST = 6
"""Characters of the shortest text that is taken for a secret in an error. Shorter ones are parts of other words."""

_WORDS = """key apikey token secret password passwd passphrase pwd auth authorization bearer credential credentials
signature sig cookie session"""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


_HIDDEN = re.compile(r"secret:[0-9a-f]{8}")


def is_secret_name(name: str) -> bool:
    """Return whether the value of a field with this name looks like a secret.

    >>> [is_secret_name(name) for name in ("api_key", "apiKey", "X-Auth-Token", "max_tokens", "tokenizer")]
    [True, True, True, False, False]
    """
    return any(word.lower() in _WORDS.split() for word in _WORD.findall(name))


def hide_secrets(value: Any, secret: bool = False) -> Any:
    """Return ``value`` with a short hash for each text in a field whose name looks like a secret, at any depth.

    The same text in any other field is hidden too, if it has ``SHORTEST`` characters. A text that is such a hash is
    kept.

    >>> hide_secrets({"top_k": 20, "api_key": "abc", "options": {"token": ["abc"]}})
    {'top_k': 20, 'api_key': 'secret:63906248', 'options': {'token': ['secret:63906248']}}
    >>> hide_secrets({"api_key": "12345678", "user": "12345678"})["user"][:7]
    'secret:'
    """
    known = {text for text in _secrets(value, secret) if len(text) >= SHORTEST}

    def hide(leaf: Any, secret: bool) -> Any:
        if leaf is None or isinstance(leaf, (int, float)) or _HIDDEN.fullmatch(str(leaf)):
            return leaf
        if not secret and not (isinstance(leaf, str) and leaf in known):
            return leaf
        return f"secret:{hashlib.blake2b(str(leaf).encode(errors='replace'), digest_size=4).hexdigest()}"

    return _changed(value, hide, secret)


def without_hashes(value: Any) -> Any:
    """Return ``value`` with the word secret for each hash of ``hide_secrets``, so that a new key changes nothing.

    >>> without_hashes({"top_k": 20, "api_key": "secret:63906248"})
    {'top_k': 20, 'api_key': 'secret'}
    """
    return _changed(value, lambda leaf, _: "secret" if isinstance(leaf, str) and _HIDDEN.fullmatch(leaf) else leaf)


def secret_texts(values: Iterable[str], extra_body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the texts to hide in errors: ``values``, their words, and the secrets in ``extra_body``.

    >>> secret_texts(["Bearer abcdefgh"], {"api_key": "12345678", "seed": "12345678"})
    ('12345678', 'Bearer', 'Bearer abcdefgh', 'abcdefgh')
    """
    texts = [*values, *_secrets(extra_body)]
    return tuple(sorted({each for text in texts for each in (text, *text.split()) if len(each) >= SHORTEST}))


def _secrets(value: Any, secret: bool = False) -> list[str]:
    """Return the texts in fields whose names look like secrets."""
    found: list[str] = []

    def note(leaf: Any, secret: bool) -> None:
        if secret and isinstance(leaf, str):
            found.append(leaf)

    _changed(value, note, secret)
    return found


def _changed(value: Any, change: Callable[[Any, bool], Any], secret: bool = False) -> Any:
    """Return ``value`` with ``change`` of each leaf, which is told whether it is in a field with a secret name."""
    if isinstance(value, Mapping):
        return {name: _changed(each, change, secret or is_secret_name(str(name))) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_changed(each, change, secret) for each in value]
    return change(value, secret)
