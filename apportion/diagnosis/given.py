"""What a user knows about the prompts apart from the run: embeddings, and success rates of another model."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from apportion.predictors.embeddings import Embedder, PrecomputedEmbeddings, SentenceTransformerEmbedder
from apportion.records.run_record import RunRecord
from apportion.rows import jsonl_rows, open_bytes
from apportion.untrusted import check_file, parse_json, shown

MINILM = "minilm"
MOST_BYTES = 2**31


def embedder_of(given: str, record: RunRecord) -> Embedder:
    """Return the embedder that ``given`` names: ``minilm``, or a file of embeddings of the prompts of ``record``.

    A ``.npy`` file holds [Q, d], in the order of the prompts of the record. A ``.npz`` file holds them as
    ``embeddings``, and may name each row's prompt in ``ids``. Raises ValueError for anything else.
    """
    if given == MINILM:
        missing = [id for id, text in zip(record.ids, record.texts, strict=True) if text is None]
        if missing:
            raise ValueError(
                f"embeddings by {MINILM} need the text of every prompt, got none for prompt {shown(missing[0])}; give "
                "a file of embeddings"
            )
        return SentenceTransformerEmbedder()
    path = Path(given)
    _check(path)
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if sum(each.file_size for each in archive.infolist()) > MOST_BYTES:
                    raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes")
            found = dict(np.load(path))
        else:
            found = {"embeddings": np.load(path, mmap_mode="r")}  # a header cannot claim more than the file has
    except (ValueError, OSError, EOFError, OverflowError, MemoryError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} must be a .npy or .npz file without objects, got another; save it by numpy"
        ) from error
    if "embeddings" not in found:
        raise ValueError(f"{path} must hold embeddings, got {shown(', '.join(found))}; name the array so")
    values = found["embeddings"]
    ids = [str(id) for id in found["ids"]] if "ids" in found else list(record.ids)
    if values.ndim != 2 or len(values) != len(ids) or values.dtype.kind not in "fiu":
        raise ValueError(
            f"embeddings must be numbers [{len(ids)}, d], one row for each prompt, got {values.dtype} "
            f"{list(values.shape)}; add ids for another order"
        )
    missing = sorted(set(record.ids) - set(ids))
    if missing:
        raise ValueError(f"embeddings must have a row for each prompt, got none for {shown(missing[0])}; add it")
    return PrecomputedEmbeddings(dict(zip(ids, values, strict=True)))


def rates_of(path: Path, record: RunRecord) -> dict[str, float]:
    """Return the known success rates of the prompts of ``record`` in a JSON object or in lines with ``id``, ``rate``.

    The file may be compressed by gzip. Prompts of other runs and null rates are left out. Raises ValueError if no
    prompt has a rate, or one is not within 0 and 1.
    """
    _check(path)
    try:
        with open_bytes(path) as file:
            text = file.read().decode("utf-8")
        try:
            rows = [parse_json(text)]
        except ValueError:
            rows = [row for _, row in jsonl_rows(path)]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"{path} must be JSON in UTF-8, got something else ({error}); check the file") from error
    known = set(record.ids)
    found: dict[str, float] = {}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"{path} must hold objects with id and rate, got {shown(str(row))} in row {number}")
        pairs = [(row["id"], row["rate"])] if "id" in row and "rate" in row else [] if "id" in row else row.items()
        for id, rate in pairs:
            if str(id) in known and rate is not None:
                if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
                    raise ValueError(
                        f"a rate must be a number between 0 and 1, got {shown(str(rate))} for prompt {shown(str(id))}"
                        f" in {path}; divide the successes by the trials"
                    )
                found[str(id)] = float(rate)
    if not found:
        raise ValueError(f"{path} must have a rate for a prompt of {record.name}, got none; use the ids of the run")
    return found


def _check(path: Path) -> None:
    try:
        check_file(path, MOST_BYTES)
    except OSError as error:
        raise ValueError(f"{path} must be a file, got none that can be read ({error}); check the path") from error
