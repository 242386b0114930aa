"""Prompt embeddings: the embedders, their cache on disk, and the table of distinct embeddings."""

from apportion.predictors.embeddings.embedders import (
    Embedder,
    PrecomputedEmbeddings,
    SentenceTransformerEmbedder,
    embed,
)

EMBEDDERS: dict[str, type[Embedder]] = {
    embedder.name: embedder for embedder in (SentenceTransformerEmbedder, PrecomputedEmbeddings)
}
"""Every embedder by name."""

__all__ = ["EMBEDDERS", "Embedder", "PrecomputedEmbeddings", "SentenceTransformerEmbedder", "embed"]
