"""Read a server's reply.

Chat and plain completions are read alike. ``content`` is a text or a list of parts, whose texts are joined. A model's
reasoning is kept apart from the text, whether it comes as ``reasoning_content``, as ``reasoning``, or in parts of type
"thinking" or "reasoning". A refusal by the model is the text of a choice that has no other. A choice without content,
as after a content filter, is a completion with an empty text.

An error in a reply of status 200 is what the same error with a status of its own is, so a rate limit is waited for.

Servers have many words for why a completion ended. Those for one kind share a word: ``BROKEN``, ``CUT``, ``FILTERED``.
"""

import json
import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from apportion.checks import encodable
from apportion.endpoint.completion import BadReply, Completion, Fault
from apportion.endpoint.retries import error_fault
from apportion.untrusted import check_depth, shown

THOUGHTS = ("thinking", "reasoning")
"""Types of the parts that hold reasoning. Other types, such as images, hold no text."""

BROKEN = re.compile(
    r"error|abort|cancel|fail|insufficient|timed?_?out|deadline|expire|unavailable|interrupt|connect|overload|preempt|evict"
    r"|kill|memory|malformed|rate_limit",
    re.IGNORECASE,
)
"""Why a choice ended if the server broke it off, such as "network_error". It is no completion."""
CUT = re.compile(r"length|max_|context|window|limit|trunc|too_long|incomplete", re.IGNORECASE)
"""Why a choice ended at a maximum length, such as "model_context_window_exceeded"."""
FILTERED = re.compile(
    r"filter|sensitive|safety|block|prohibit|recitation|spii|refus|moderat|violat|guardrail", re.IGNORECASE
)
"""Why a choice ended if its content was held back, such as "content_filter". What is left of it states no answer."""

LATER = re.compile(
    r"(?<!\d)(?P<status>40[89]|429|5\d\d)(?!\d)|(?P<limited>rate.?limit|exhausted|too.?many|quota|throttl)|overload",
    re.IGNORECASE,
)
"""Codes and kinds of errors in a reply whose request may be answered later."""
LIMITED = re.compile(r"rate.{0,3}limit|too.many.requests|throttl|request limit|速率|限流", re.IGNORECASE)
"""Words in an error's message that mark a rate limit, if its code does not."""
KIND = re.compile(r'"(?:\w{1,20}_)?(?:code|status|type)": "?([^"{}\[\],]{1,99})')
"""A code or kind in the JSON of an error, wherever it lies."""

USUAL = ("choices", "id", "object", "created", "model", "usage")
"""Fields of a usual reply. If there are no choices, all other fields are the error."""

MOST_TOKENS = 10**12
"""Largest token count that is believed. A larger one counts as unknown."""


def read_reply(reply: Any) -> list[Completion]:
    """Return the completions in a reply, at least one, in the order of their index. Raises Fault.

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
        prompt = None if prompt is None else 0  # the prompt's tokens count once
    return found


def whole_choices(reply: Any) -> list[dict[str, Any]]:
    """Return the choices of a reply, at least one, by their index. Raises Fault.

    Choices that the server broke off with an error of its own, in a reply with status 200, are left out.

    >>> whole_choices({"choices": [{"finish_reason": "error", "text": "So"}, {"finish_reason": "length", "text": "4"}]})
    [{'finish_reason': 'length', 'text': '4'}]
    """
    reply = reply[0] if isinstance(reply, list) and reply else reply
    reply = reply if isinstance(reply, dict) else {}
    choices, error = reply.get("choices"), _error(reply)
    if not isinstance(choices, list) or not choices:
        rest = {name: value for name, value in reply.items() if name not in USUAL}
        raise fault_of("a reply without choices", error or rest)
    if error:
        raise fault_of("an error beside its choices", error)
    if not all(isinstance(choice, dict) for choice in choices):
        raise BadReply("a reply whose choices are not objects")
    whole = [each for each in choices if not (BROKEN.search(finish_reason(each) or "") or _error(each))]
    if not whole:
        first = choices[0]
        raise fault_of("a completion that ended in an error", _error(first) or finish_reason(first))
    return sorted(whole, key=lambda choice: choice["index"] if isinstance(choice.get("index"), int) else 0)


def _error(sent: dict[str, Any]) -> Any:
    """Return the error in a reply or a choice; None if there is none, also if all of its fields are empty."""
    error = sent.get("error")
    return error if not isinstance(error, dict) or any(error.values()) else None


def fault_of(what: str, error: Any) -> Fault:
    """Return the fault of an ``error`` in a reply of status 200. ``what`` says where in the reply it was.

    >>> fault_of("an error in a stream", {"code": "rate_limit_exceeded", "message": "Try again in 2s"}).wait
    2.0
    """
    if not error:
        return BadReply(what)
    said = error if isinstance(error, str) else _json(error)
    kinds = said if isinstance(error, str) else " ".join(KIND.findall(said))
    found, status = LATER.search(kinds), 500
    if found is not None:
        status = int(found["status"] or (429 if found["limited"] else 529))
    elif LIMITED.search(said):
        status = 429
    return error_fault(status, f"sent {what}: {error_text(error)}", kinds, sent=error)


def finish_reason(choice: dict[str, Any]) -> str | None:
    """Return why a choice ended; None if that is no text."""
    reason = choice.get("finish_reason")
    return encodable(reason) if isinstance(reason, str) else None


def error_text(error: Any) -> str:
    """Return the message of an error, which may be a text or an object with a message or detail."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error.get("error") or error
    return " ".join((error if isinstance(error, str) else _json(error) if error else "").split())


def _json(error: Any) -> str:
    """Return an error as JSON, or shown if it is too deep."""
    try:
        check_depth(error)
        return json.dumps(error, ensure_ascii=False)
    except (ValueError, TypeError):
        return shown(error)


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
