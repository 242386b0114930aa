"""Read a server's reply.

Chat and plain completions are read alike. ``content`` is a text or a list of parts, whose texts are joined. A model's
reasoning is kept apart from the text, whether it comes as ``reasoning_content``, as ``reasoning``, or in parts of type
"thinking" or "reasoning". A refusal by the model is the text of a choice that has no other. A choice without content,
as after a content filter, is a completion with an empty text.
"""

import json
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from apportion.checks import encodable
from apportion.endpoint.completion import BadReply, Completion
from apportion.untrusted import check_depth, shown

THOUGHTS = ("thinking", "reasoning")
"""Types of the parts that hold reasoning. Other types, such as images, hold no text."""

BROKEN = ("error", "abort", "aborted", "cancelled")
"""Why a choice ended if the server broke it off."""

MOST_TOKENS = 10**12
"""The largest count of tokens that is taken for one. A larger one counts as none."""


def read_reply(reply: Any) -> list[Completion]:
    """Return the completions in a reply, at least one, in the order of their index. Raises BadReply.

    >>> half, = read_reply({"choices": [{"text": "1/2"}], "usage": {"completion_tokens": 3}})
    >>> half.text, half.tokens
    ('1/2', 3)
    """
    choices = whole_choices(reply)
    said = [choice_text(choice) for choice in choices]
    tokens = _share(_count(reply, "completion_tokens"), [len(text) + len(thought or "") + 1 for text, thought in said])
    prompt, found = _count(reply, "prompt_tokens"), list[Completion]()
    for choice, (text, thought), own in zip(choices, said, tokens, strict=True):
        found.append(Completion(text, own, prompt, finish_reason(choice), reasoning=thought))
        prompt = None if prompt is None else 0  # counted once
    return found


def whole_choices(reply: Any) -> list[dict[str, Any]]:
    """Return the choices of a reply, at least one, by their index. Raises BadReply.

    Choices that the server broke off with an error of its own, in a reply with status 200, are left out.

    >>> whole_choices({"choices": [{"finish_reason": "error", "text": "So"}, {"finish_reason": "length", "text": "4"}]})
    [{'finish_reason': 'length', 'text': '4'}]
    """
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or not choices:
        said = error_text(reply.get("error")) if isinstance(reply, dict) else ""
        raise BadReply("a reply without choices" + (f": {said}" if said else ""))
    if not all(isinstance(choice, dict) for choice in choices):
        raise BadReply("a reply whose choices are not objects")
    whole = [each for each in choices if each.get("finish_reason") not in BROKEN and not each.get("error")]
    if not whole:
        raise BadReply(f"a completion that ended in an error: {error_text(choices[0].get('error')) or 'no reason'}")
    return sorted(whole, key=lambda choice: choice["index"] if isinstance(choice.get("index"), int) else 0)


def finish_reason(choice: dict[str, Any]) -> str | None:
    """Return why a choice ended; None if that is no text."""
    reason = choice.get("finish_reason")
    return encodable(reason) if isinstance(reason, str) else None


def error_text(error: Any) -> str:
    """Return the message of an error, which may be a text or an object with a message or detail."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error.get("error") or error
    try:
        check_depth(error)
        text = error if isinstance(error, str) else json.dumps(error) if error else ""
    except (ValueError, TypeError):
        text = shown(error)
    return " ".join(text.split())


def choice_text(choice: dict[str, Any]) -> tuple[str, str | None]:
    """Return the text of a choice, and its reasoning if it has any. Raises BadReply.

    >>> choice_text({"message": {"content": [{"type": "text", "text": "It is "}, {"type": "text", "text": "4."}]}})
    ('It is 4.', None)
    """
    message = choice.get("message")
    if isinstance(message, dict):
        text, thoughts = _joined(message.get("content"))
        refusal, _ = _joined(message.get("refusal"))
        own = next(filter(None, (_joined(message.get(name))[0] for name in ("reasoning_content", "reasoning"))), "")
        text, thoughts = text or refusal, own + thoughts
    elif "text" in choice:
        text, thoughts = _joined(choice["text"])
    else:
        raise BadReply("a choice without message or text")
    return encodable(text), encodable(thoughts) or None


def _joined(content: Any) -> tuple[str, str]:
    """Return the text of ``content`` and the reasoning in it: of nothing, of a text, or of a list of parts."""
    texts, thoughts = list[str](), list[str]()
    for part in content if isinstance(content, list) else [content]:
        if part is None or isinstance(part, str):
            texts.append(part or "")
        elif not isinstance(part, dict):
            raise BadReply("a choice whose content is not a text")
        elif (kind := part.get("type", "text")) in THOUGHTS:
            thoughts.extend(_joined(part.get(kind, part.get("text"))))
        elif kind in ("text", "output_text", "refusal"):
            texts.extend(_joined(part.get("refusal" if kind == "refusal" else "text")))
    return "".join(texts), "".join(thoughts)


def _count(reply: dict[str, Any], name: str) -> int | None:
    usage = reply.get("usage")
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and 0 <= count <= MOST_TOKENS else None


def _share(total: int | None, weights: Sequence[int]) -> Sequence[int | None]:
    """Divide ``total`` into integers in proportion to ``weights`` [n], with the same sum; None for each if unknown."""
    if total is None:
        return [None] * len(weights)
    ends = [total * until // sum(weights) for until in accumulate(weights)]
    return [end - start for start, end in pairwise([0, *ends])]
