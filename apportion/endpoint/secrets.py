"""Find secrets among settings, so that they can be kept out of files and errors."""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
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
    return _hidden(value, secret, {text for text in _secrets(value, secret) if len(text) >= SHORTEST})


def _hidden(value: Any, secret: bool, known: Collection[str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _hidden(each, secret or is_secret_name(str(name)), known) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hidden(each, secret, known) for each in value]
    secret = secret or (isinstance(value, str) and value in known)
    if secret and value is not None and not isinstance(value, (int, float)) and not _HIDDEN.fullmatch(str(value)):
        return f"secret:{hashlib.blake2b(str(value).encode(errors='replace'), digest_size=4).hexdigest()}"
    return value


def without_hashes(value: Any) -> Any:
    """Return ``value`` with the word secret for each hash of ``hide_secrets``, so that a new key changes nothing.

    >>> without_hashes({"top_k": 20, "api_key": "secret:63906248"})
    {'top_k': 20, 'api_key': 'secret'}
    """
    if isinstance(value, Mapping):
        return {name: without_hashes(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_hashes(each) for each in value]
    return "secret" if isinstance(value, str) and _HIDDEN.fullmatch(value) else value


def secret_texts(values: Iterable[str], extra_body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the texts to hide in errors: ``values``, their words, and the secrets in ``extra_body``.

    >>> secret_texts(["Bearer abcdefgh"], {"api_key": "12345678", "seed": "12345678"})
    ('12345678', 'Bearer', 'Bearer abcdefgh', 'abcdefgh')
    """
    texts = [*values, *_secrets(extra_body)]
    return tuple(sorted({each for text in texts for each in (text, *text.split()) if len(each) >= SHORTEST}))


def _secrets(value: Any, secret: bool = False) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _secrets(each, secret or is_secret_name(str(name)))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _secrets(each, secret)
    elif secret and isinstance(value, str):
        yield value
