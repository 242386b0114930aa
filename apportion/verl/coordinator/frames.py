"""Pickles in frames, so that one that was cut off can be told from one that was damaged.

A frame is a header and a pickle. The header holds the pickle's size and checksum, and a checksum of these two.
"""

import io
import pickle
import struct
from typing import IO, Any
from zlib import crc32

from apportion.verl.coordinator.event_pickles import EventPickler

_SIZES = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _SIZES.size + _CHECKSUM.size


class DamagedFrameError(ValueError):
    """A frame whose bytes are not those that were written."""


def make_frame(value: Any) -> memoryview:
    """Return the frame of ``value``, as bytes."""
    file = io.BytesIO()
    file.write(bytes(HEADER_BYTES))
    EventPickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    frame = file.getbuffer()
    frame[:HEADER_BYTES] = _header(frame[HEADER_BYTES:])
    return frame


def read_frame(file: IO[bytes]) -> bytes | None:
    """Return the pickle in the next frame of ``file``; None if the file ends before the frame does.

    Raises DamagedFrameError. The size that a header gives is trusted only if the header's checksum is right.
    """
    header = file.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    size, _ = _SIZES.unpack_from(header)
    if _CHECKSUM.unpack_from(header, _SIZES.size) != (crc32(header[: _SIZES.size]),):
        raise DamagedFrameError("the bytes of a header are not those that were written")
    content = file.read(size)
    if len(content) < size:
        return None
    if header != _header(content):
        raise DamagedFrameError("the bytes of an event are not those that were written")
    return content


def _header(content: bytes | memoryview) -> bytes:
    sizes = _SIZES.pack(len(content), crc32(content))
    return sizes + _CHECKSUM.pack(crc32(sizes))
