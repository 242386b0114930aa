"""Damage files and command lines: flip bits, tear and splice files, write extreme tokens, put code into pickles.

A mutation takes random numbers, a valid file and another file of the same kind, and returns the damaged bytes. It is a
function of its arguments, so a seed gives the same cases each time.
"""

from __future__ import annotations

import gzip
import io
import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Sequence
from random import Random

Mutation = Callable[[Random, bytes, bytes], bytes]

MARKER = "code-was-executed"
"""The file that crafted pickles make in the working directory."""

NUMBERS = (
    "0", "-1", "-0.0", "1e300", "-1e300", "1e-320", "nan", "inf", "-inf", "NaN", "Infinity", str(2**31), str(2**63),
    str(-(2**63) - 1), str(2**64), "1" + "0" * 5000, "9" * 400, "0." + "3" * 400, "1_000", "0x10", "1e5", "1.0",
    "0.5", "1e400", "true", "null", "", " ", '""', "[]", "{}", "1979-05-27", "\u0663", "\uff11", "--1", "1,5", "2**9",
)  # fmt: skip
STRINGS = (
    "", " ", "x" * 100_000, "\x00", "\x1b[31m", "\\ud800", "\ud800", "../../escaped", "/dev/full", "/nonexistent/x",
    "~", "a/b", "..", ".", "-", "--help", "\u202etxt", "e\u0301", "{question}", "{}", "%s", "\n\n", "\r", "\\", '"',
    "nan", "null", "None", "true", "0", "1e999", "name", "__class__", "$HOME", "$(touch marker)", "uniform", "gp",
)  # fmt: skip
DEPTHS = (50, 2_000, 100_000)
TOKEN = re.compile(r'(?P<string>"[^"\n]*"|\'[^\'\n]*\')|(?P<number>(?<![\w.])-?\d[\w.+-]*)|(?P<word>[A-Za-z_]\w*)')
SPACE_BETWEEN = re.compile(r"(\s+)")


def flip(rng: Random, own: bytes, other: bytes) -> bytes:
    """Flip one to eight bits."""
    found = bytearray(own)
    for _ in range(rng.choice((1, 1, 1, 2, 8)) if found else 0):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def overwrite(rng: Random, own: bytes, other: bytes) -> bytes:
    """Replace a range by zeros, as a lost block of a disk, or by noise."""
    first, last = _range(rng, own)
    filling = bytes(last - first) if rng.random() < 0.5 else rng.randbytes(last - first)
    return own[:first] + filling + own[last:]


def truncate(rng: Random, own: bytes, other: bytes) -> bytes:
    """Keep the beginning, down to nothing, or all but the last bytes."""
    return own[: max(0, len(own) - rng.randrange(1, 9))] if rng.random() < 0.3 else own[: rng.randrange(len(own) + 1)]


def cut(rng: Random, own: bytes, other: bytes) -> bytes:
    """Remove a range."""
    first, last = _range(rng, own)
    return own[:first] + own[last:]


def repeat(rng: Random, own: bytes, other: bytes) -> bytes:
    """Write a range, or the whole file, twice."""
    first, last = (0, len(own)) if rng.random() < 0.2 else _range(rng, own)
    return own[:last] + own[first:last] + own[last:]


def splice(rng: Random, own: bytes, other: bytes) -> bytes:
    """Join the beginning of this file and the end of another."""
    return own[: rng.randrange(len(own) + 1)] + other[rng.randrange(len(other) + 1) :]


def insert(rng: Random, own: bytes, other: bytes) -> bytes:
    """Insert a few bytes: noise, a byte order mark, zeros, or a control character."""
    place = rng.choice((0, len(own), rng.randrange(len(own) + 1)))
    new = rng.choice((rng.randbytes(rng.randrange(1, 9)), b"\xef\xbb\xbf", b"\0", b"\0" * 64, b"\x1a", b"\x1b[2J"))
    return own[:place] + new + own[place:]


def encode(rng: Random, own: bytes, other: bytes) -> bytes:
    """Save the text in another encoding, or with other ends of lines."""
    text = own.decode("utf-8", "surrogateescape")
    kind = rng.randrange(7)
    if kind < 3:
        return text.encode(("utf-16", "utf-16-le", "utf-32")[kind], "surrogatepass")
    if kind == 3:
        return text.replace("e", "\u00e9", 3).encode("latin-1", "replace")
    if kind == 4:
        return b"\xef\xbb\xbf" * rng.choice((1, 2)) + own
    return own.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\x0b", "\u2028".encode(), b"\n\n", b"")))


def compress(rng: Random, own: bytes, other: bytes) -> bytes:
    """Compress the file without changing its name."""
    if rng.random() < 0.5:
        return gzip.compress(own, mtime=0)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr(zipfile.ZipInfo("content"), own)
    return archive.getvalue()


def change_number(rng: Random, own: bytes, other: bytes) -> bytes:
    """Replace a number by an extreme one, or by a value of another type."""
    return _replace(rng, own, "number", lambda old: rng.choice(NUMBERS))


def change_string(rng: Random, own: bytes, other: bytes) -> bytes:
    """Replace a string by an extreme one, or by a value of another type."""

    def extreme(old: str) -> str:
        if rng.random() < 0.2:
            return rng.choice(NUMBERS)
        return old[0] + rng.choice(STRINGS) + old[0]

    return _replace(rng, own, "string", extreme)


def change_word(rng: Random, own: bytes, other: bytes) -> bytes:
    """Rename, misspell or empty a word, such as a key."""

    def changed(old: str) -> str:
        return rng.choice((old + old, old[:-1], old.upper(), rng.choice(STRINGS), f"{old}.{old}", old[::-1]))

    return _replace(rng, own, "word", changed)


def swap_tokens(rng: Random, own: bytes, other: bytes) -> bytes:
    """Write a token of this file or of another in the place of a token."""
    text, source = _text(own), _text(rng.choice((own, other)))
    here, there = list(TOKEN.finditer(text)), list(TOKEN.finditer(source))
    if not here or not there:
        return flip(rng, own, other)
    target = rng.choice(here)
    return _bytes(text[: target.start()] + rng.choice(there)[0] + text[target.end() :])


def change_lines(rng: Random, own: bytes, other: bytes) -> bytes:
    """Remove, repeat, swap, shuffle or join lines, or take one of another file."""
    lines = own.splitlines(keepends=True) or [b""]
    place, kind = rng.randrange(len(lines)), rng.randrange(6)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(rng.randrange(len(lines) + 1), lines[place])
    elif kind == 2:
        rng.shuffle(lines)
    elif kind == 3:
        lines[place] = lines[place].rstrip(b"\r\n")
    elif kind == 4:
        lines.insert(place, rng.choice(other.splitlines(keepends=True) or [b""]))
    else:
        first = rng.randrange(len(lines))
        lines[place], lines[first] = lines[first], lines[place]
    return b"".join(lines)


def nest(rng: Random, own: bytes, other: bytes) -> bytes:
    """Put many brackets in the place of a value."""
    depth = rng.choice(DEPTHS)
    opened, closed = rng.choice((("[", "]"), ('{"a":', "}"), ("{a=", "}"), ("a.", ""), ("(", ")")))
    inside = opened * depth + "0" + closed * rng.choice((depth, 0))
    return _replace(rng, own, rng.choice(("number", "string")), lambda old: inside)


def punctuate(rng: Random, own: bytes, other: bytes) -> bytes:
    """Remove or double a punctuation mark."""
    places = [place for place, byte in enumerate(own) if byte in b"[]{}(),:=\"'\n#\\"]
    if not places:
        return flip(rng, own, other)
    place = rng.choice(places)
    return own[:place] + own[place : place + 1] * rng.choice((0, 2)) + own[place + 1 :]


def rewrite_pickle(rng: Random, own: bytes, other: bytes) -> bytes:
    """Put a pickle that runs code, or asks for much memory, in the place of the file's own pickle."""
    crafted = rng.choice(payloads())
    if not zipfile.is_zipfile(io.BytesIO(own)):
        return crafted + own if rng.random() < 0.3 else _legacy(crafted) if rng.random() < 0.3 else crafted
    return rewrite_zip(own, lambda name, content: crafted if name.endswith(".pkl") else content)


def rewrite_member(rng: Random, own: bytes, other: bytes) -> bytes:
    """Change bytes of one member of an archive, whose checksums are made again; flip bits of another file."""
    if not zipfile.is_zipfile(io.BytesIO(own)):
        return flip(rng, own, other)
    with zipfile.ZipFile(io.BytesIO(own)) as archive:
        chosen = rng.choice([name for name in archive.namelist() if archive.getinfo(name).file_size])
    change = rng.choice((flip, truncate, overwrite, cut))
    return rewrite_zip(own, lambda name, content: change(rng, content, content) if name == chosen else content)


def payloads() -> list[bytes]:
    """Return pickles that make ``MARKER`` if they are loaded without care, and some that ask for much memory."""
    touch = f"open({MARKER!r}, 'w').close()"
    calls = [
        ("os", "system", (f"touch {MARKER}",)),
        ("posix", "system", (f"touch {MARKER}",)),
        ("subprocess", "getoutput", (f"touch {MARKER}",)),
        ("builtins", "exec", (touch,)),
        ("builtins", "eval", (touch,)),
        ("builtins", "__import__", ("antigravity",)),
        ("builtins", "open", (MARKER, "w")),
        ("io", "open", (MARKER, "w")),
        ("_io", "FileIO", (MARKER, "w")),
        ("pathlib", "Path.touch", (MARKER,)),
        ("shutil", "copyfile", ("/proc/self/cmdline", MARKER)),
        ("timeit", "timeit", ("0", touch, "0", 1)),
        ("pdb", "run", (touch,)),
        ("code", "interact", ()),
        ("numpy", "fromfile", ("/etc/hostname",)),
        ("numpy", "savetxt", (MARKER, (1.0,))),
        ("numpy", "memmap", (MARKER, "uint8", "w+", 0, (1,))),
        ("numpy.testing._private.utils", "runstring", (touch, {})),
        ("torch", "load", (MARKER,)),
        ("torch", "save", (1, MARKER)),
        ("torch.hub", "download_url_to_file", ("http://127.0.0.1:9/", MARKER)),
        ("apportion.runs.whole_files", "write_whole", (MARKER, "")),
        ("builtins", "bytearray", (2**40,)),
        ("builtins", "range", (2**62,)),
        ("torch._utils", "_rebuild_tensor_v2", (None, 0, (2**40,), (1,), False, None)),
        ("numpy.core.multiarray", "_reconstruct", (("numpy", "ndarray"), (2**40,), b"b")),
        ("numpy._core.multiarray", "scalar", ("f8", b"\0")),
    ]
    found = [_call(*call) for call in calls]
    found += [f"c{module}\n{name}\n.".encode() for module, name, _ in calls]
    found += [_call(*call, opcode=b"o") for call in calls[:6]]
    bomb = b"\x80\x04]\x94(" + b"h\x00" * 0 + b"K\x01e."
    doubled = b"(lp0\n" + b"".join(b"(g%d\ng%d\nlp%d\n" % (n, n, n + 1) for n in range(40)) + b"."
    return [
        *found,
        bomb,
        doubled,
        b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b".",
        b"\x80\x05\x96" + b"\xff" * 8,
        b".",
    ]


def rewrite_zip(own: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    """Return the archive ``own`` with members as ``change`` returns them, and with right checksums."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(own)) as source, zipfile.ZipFile(target, "w") as archive:
        for name in source.namelist():
            archive.writestr(zipfile.ZipInfo(name), change(name, source.read(name)))
    return target.getvalue()


BYTES: tuple[Mutation, ...] = (flip, flip, overwrite, truncate, cut, repeat, splice, insert, compress)
TEXT: tuple[Mutation, ...] = (
    *BYTES, encode, change_number, change_number, change_number, change_string, change_string, change_word, swap_tokens,
    change_lines, change_lines, nest, punctuate,
)  # fmt: skip
PICKLED: tuple[Mutation, ...] = (*BYTES, flip, rewrite_pickle, rewrite_pickle, rewrite_member, rewrite_member)


def change_arguments(rng: Random, own: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return the command line ``own`` with one to three arguments changed. No argument holds a zero byte."""
    found = list(own)
    for _ in range(rng.choice((1, 1, 2, 3))):
        place, kind = rng.randrange(len(found)) if found else 0, rng.randrange(8)
        if kind == 0 and found:
            del found[place]
        elif kind == 1 and found:
            found.insert(place, found[place])
        elif kind == 2:
            found.insert(
                place, rng.choice(("--nonsense", "--set", "--", "-", "", "-x", "--json", "--dry-run", "--help"))
            )
        elif kind == 3:
            found.insert(place, rng.choice(other))
        elif kind == 4 and found:
            found[place] = rng.choice(NUMBERS)
        elif kind == 5 and found:
            found[place] = rng.choice(STRINGS)
        elif found:
            changed = rng.choice((change_number, change_string, change_word, punctuate, flip))
            found[place] = changed(rng, found[place].encode("utf-8", "surrogateescape"), b"x").decode(
                "utf-8", "surrogateescape"
            )
    return [
        each.replace("\0", "").encode("utf-8", "replace").decode("utf-8", "surrogateescape")[:100_000] for each in found
    ]


def _call(module: str, name: str, arguments: tuple[object, ...], opcode: bytes = b"R") -> bytes:
    """Return a pickle that calls ``module.name`` with ``arguments``."""
    given = pickle.dumps(arguments, 2)[2:-1]
    dotted = b"\x80\x04" + _text_opcode(module) + _text_opcode(name) + b"\x93"
    if opcode == b"R":
        return dotted + given + b"R."
    return b"\x80\x04(" + dotted[2:] + b"".join(pickle.dumps(each, 2)[2:-1] for each in arguments) + b"o."


def _text_opcode(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def _legacy(crafted: bytes) -> bytes:
    """Return a file in torch's old format, whose first three pickles are its magic number, protocol and system."""
    head = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}})
    return b"".join(pickle.dumps(each, 2) for each in head) + crafted


def _range(rng: Random, own: bytes) -> tuple[int, int]:
    first = rng.randrange(len(own) + 1)
    return first, min(len(own), first + rng.choice((1, 4, 16, 100, 1000, len(own))))


def _replace(rng: Random, own: bytes, kind: str, new: Callable[[str], str]) -> bytes:
    """Return the text with one token of this kind changed by ``new``. Without such a token flip a bit."""
    text = _text(own)
    found = [match for match in TOKEN.finditer(text) if match.lastgroup == kind]
    if not found:
        return flip(rng, own, own)
    match = rng.choice(found)
    return _bytes(text[: match.start()] + new(match[0]) + text[match.end() :])


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return b"".join(
        character.encode("utf-8", "surrogatepass")
        if not "\udc80" <= character <= "\udcff"
        else character.encode("utf-8", "surrogateescape")
        for character in text
    )
