"""The measures of question answering with a search tool: exact match (EM), Precision@k and F1@k.

VIP (Nguyen et al., 2026, arXiv 2602.01601, section 6) reports them without a definition. EM is SQuAD's (Rajpurkar et
al. 2016, arXiv 1606.05250, section 6.1), as in FlashRAG (Jin et al., arXiv 2405.13576). The other two are those of
information retrieval. Which passages are relevant is the caller's to say: those that support the question, or those
that contain a gold answer, as FlashRAG has it.
"""

import re
import string
from collections.abc import Collection, Sequence

from apportion.checks import check_integer

PUNCTUATION = str.maketrans("", "", string.punctuation)


def squad_form(answer: str) -> str:
    """Return ``answer`` as SQuAD's evaluation compares it: lower case, no ASCII punctuation, no articles.

    Note: an answer without any other characters, such as the choice "A", stays. ``phrase_form`` is safer: it keeps
    signs and decimal points too, and reads numbers in words.

    >>> squad_form("The  Beatles!"), squad_form("-1.5"), squad_form("A")
    ('beatles', '15', 'A')
    """
    words = re.sub(r"\b(a|an|the)\b", " ", answer.lower().translate(PUNCTUATION)).split()
    return " ".join(words) or answer.strip()


def exact_match(answer: str | None, golds: Collection[str]) -> bool:
    """Return whether ``answer`` is one of the right answers ``golds`` by ``squad_form``; None, no answer, is wrong.

    Raises ValueError if ``golds`` is empty or a text.

    >>> exact_match("the Seine.", ["Seine", "River Seine"]), exact_match("Rhine", ["Seine"])
    (True, False)
    """
    _check_collection("golds", golds)
    return answer is not None and squad_form(answer) in map(squad_form, golds)


def precision_at_k(searches: Sequence[Sequence[str]], relevant: Collection[str], k: int) -> float:
    """Return the share of relevant passages among the first ``k`` of a search, as the mean over a rollout's searches.

    ``searches`` are the passages that each search found, or their ids, best first. A passage counts once, and a search
    that found fewer than k has missed the rest. Without a search it is 0. Raises ValueError if k is below 1, and if
    ``relevant`` is empty or a text.

    >>> precision_at_k([["a", "x"], ["b", "a"]], {"a", "b"}, k=2)
    0.75
    """
    k = check_integer("k", k, 1)
    _check_collection("relevant", relevant)
    found = [len(set(search[:k]).intersection(relevant)) / k for search in searches]
    return sum(found) / len(found) if found else 0.0


def f1_at_k(searches: Sequence[Sequence[str]], relevant: Collection[str], k: int) -> float:
    """Return the harmonic mean of ``precision_at_k`` and the recall of all ``searches`` of a rollout together.

    Recall is the share of ``relevant`` among the first ``k`` of any search. Without a relevant passage F1 is 0. Raises
    ValueError as ``precision_at_k`` does.

    >>> round(f1_at_k([["a", "x"], ["b", "a"]], {"a", "b"}, k=2), 3)
    0.857
    """
    precision = precision_at_k(searches, relevant, k)
    recall = len({passage for search in searches for passage in search[:k]}.intersection(relevant)) / len(set(relevant))
    return 2 * precision * recall / (precision + recall) if precision else 0.0


def _check_collection(name: str, given: Collection[str]) -> None:
    if isinstance(given, str) or not given:
        raise ValueError(f"{name} must hold at least one text, got {given!r:.80}; put texts in a list, or leave it out")
