"""Files that a stranger may put where the package reads a file of its own."""

import io
import os
import pickle
import zipfile

import safetensors.torch
import torch

MARKER = "code-ran"


class Command:
    """Unpickling it makes the file ``marker``."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def _archive(name, content, compression=zipfile.ZIP_STORED):
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", compression) as archive:
        archive.writestr(name, content)
    return whole.getvalue()


def _torch_file(value):
    whole = io.BytesIO()
    torch.save(value, whole)
    return whole.getvalue()


def _declares(shape, size):
    """Return a safetensors file that says it has a tensor of this ``shape``, and has four bytes."""
    header = b'{"apportion":{"dtype":"F32","shape":%s,"data_offsets":[0,%d]}}' % (str(shape).encode(), size)
    return len(header).to_bytes(8, "little") + header + bytes(4)


FILES = {
    "nothing": lambda marker: b"",
    "text": lambda marker: b"step,reward\n1,0.5\n",
    "random bytes": lambda marker: bytes((37 * i * i + 11 * i) % 251 for i in range(4096)),
    "a pickle with code": lambda marker: pickle.dumps({"state": Command(marker)}),
    "an old pickle with code": lambda marker: pickle.dumps({"state": Command(marker)}, protocol=0),
    "a torch file with code": lambda marker: _torch_file({"state": Command(marker)}),
    "another archive": lambda marker: _archive("notes.txt", b"hello"),
    "a compressed bomb": lambda marker: _archive("data.pkl", bytes(10**7), zipfile.ZIP_DEFLATED),
    "a declared giant": lambda marker: _declares([10**12], 4 * 10**12),
    "a giant in four bytes": lambda marker: _declares([10**12], 4),
    "somebody's weights": lambda marker: safetensors.torch.save({"weight": torch.zeros(3)}),
    "deep JSON": lambda marker: safetensors.torch.save(
        {"apportion": torch.frombuffer(bytearray(b"[" * 10**5), dtype=torch.uint8)}
    ),
}
"""Foreign files by what they are. Each is made with the path of a file that code would make."""
