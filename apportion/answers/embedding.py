"""The equivalence by a model of text similarity: answers are one vote if their embeddings point the same way.

Similar is not the same: "north" and "south", or two people of one family, are similar. So a threshold merges some
different answers and separates some equal ones. ``benchmarks/free_form`` measures how many.
"""

import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from threading import Lock
from typing import Any

import numpy as np

from apportion.answers.equivalence import Equivalence
from apportion.answers.phrase import phrase_form
from apportion.answers.user_code import in_thread
from apportion.predictors.embeddings import Embedder, SentenceTransformerEmbedder, embed
from apportion.predictors.embeddings.embedders import DEFAULT_MODEL, Embeddings
from apportion.types import Floats, Prompt
from apportion.untrusted import shown

Embed = Callable[[Sequence[str]], Any]
"""P texts -> their embeddings [P, d], with the same d at every call."""

THRESHOLD = 0.65
"""The best F1 on either half of the questions of ``benchmarks/free_form``, where .65 to .85 chose equally well."""
REMEMBERED = 2**14
"""Embeddings kept in memory."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class EmbeddingMatch(Equivalence):
    """Answers are equal if the cosine similarity of their embeddings is at least ``threshold``.

    An answer joins the most similar class above the threshold. The same words (``PhraseMatch``) are always equal, and
    answers with different digits never are, because models hardly tell 1912 from 1921. The model runs in a thread.

    Args:
        threshold: least cosine similarity of equal answers, above 0 and at most 1. A higher one merges fewer answers.
        model: the model of sentence-transformers by its name, or a function from texts to embeddings. The default,
            all-MiniLM-L6-v2, is loaded when first needed.

    Raises ValueError for another threshold, and ImportError if the default model is not installed.
    """

    def __init__(self, threshold: float = THRESHOLD, model: str | Embed = DEFAULT_MODEL) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 < threshold <= 1:
            raise ValueError(f"threshold must be above 0 and at most 1, got {threshold!r}; {THRESHOLD} is usual")
        if not isinstance(model, str) and not callable(model):
            raise ValueError(
                f"model must be a name or a function from texts to embeddings, got {shown(model)}; give one"
            )
        if isinstance(model, str) and find_spec("sentence_transformers") is None:
            raise ImportError(
                "equivalence by embeddings needs sentence-transformers, which is not installed; "
                "pip install 'apportion[embed]'"
            )
        self.threshold = threshold
        self._embedder: Embedder = SentenceTransformerEmbedder(model) if isinstance(model, str) else _of_texts(model)
        self._turn = Lock()
        self._vectors: dict[str, Floats] = {}

    async def find_equal(self, answer: str, known: Sequence[str]) -> int | None:
        """Return the index of the most similar of ``known`` above the threshold; None if there is none."""
        phrase, phrases = phrase_form(answer), [phrase_form(other) for other in known]
        if phrase in phrases:
            return phrases.index(phrase)
        rivals = [place for place, other in enumerate(phrases) if _numbers(other) == _numbers(phrase)]
        if not rivals or not phrase:
            return None
        vectors = await in_thread(self._unit_vectors, [answer, *(known[place] for place in rivals)])
        similarities = vectors[1:] @ vectors[0]
        best = int(similarities.argmax())
        return rivals[best] if similarities[best] >= self.threshold else None

    def _unit_vectors(self, texts: Sequence[str]) -> Floats:
        """Return the embeddings [P, d] of ``texts``, each of length 1, in one call for those that are not in memory."""
        with self._turn:  # models are rarely safe in several threads
            unknown = [text for text in dict.fromkeys(texts) if text not in self._vectors]
            if unknown:
                found = embed(self._embedder, [Prompt(text) for text in unknown]).astype(float)
                lengths = np.linalg.norm(found, axis=1, keepdims=True)
                self._vectors |= zip(unknown, found / np.where(lengths > 0, lengths, 1), strict=True)
            vectors = np.stack([self._vectors[text] for text in texts])
            while len(self._vectors) > REMEMBERED:
                self._vectors.pop(next(iter(self._vectors)))
            return vectors


def _of_texts(model: Embed) -> Embedder:
    """Return ``model`` as an embedder of prompts."""

    def embed_texts(prompts: Sequence[Prompt], /) -> Embeddings:
        return model([prompt.text for prompt in prompts])

    return embed_texts


def _numbers(phrase: str) -> list[str]:
    return sorted(NUMBER.findall(phrase))
