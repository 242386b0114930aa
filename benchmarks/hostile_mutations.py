"""Damage files and command lines: flip bits, tear and splice files, write extreme tokens, put code into pickles.

A mutation takes random numbers, a valid file and another file of the same kind, and returns the damaged bytes. It is a
function of its arguments, so a seed gives the same cases each time.
"""

from __future__ import annotations

import bz2
import gzip
import pickle
import re
from collections.abc import Callable
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
ARGUMENTS = ("--nonsense", "--set", "--", "-", "", "-x", "--json", "--dry-run", "--help")
MARKS = (b"\xef\xbb\xbf", b"\0", b"\0" * 64, b"\x1a", b"\x1b[2J")
ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig")
NEWLINES = (b"\r\n", b"\r", b"\x0b", "\u2028".encode(), b"\n\n", b"")
BRACKETS = (("[", "]"), ('{"a":', "}"), ("{a=", "}"), ("a.", ""), ("(", ")"))
DEPTHS = (50, 2_000, 100_000)
TOKEN = re.compile(r'(?P<string>"[^"\n]*"|\'[^\'\n]*\')|(?P<number>(?<![\w.])-?\d[\w.+-]*)|(?P<word>[A-Za-z_]\w*)')

CODE = f"open({MARKER!r}, 'w').close()"
CALLS: tuple[tuple[str, str, tuple[object, ...]], ...] = (
    ("os", "system", (f"touch {MARKER}",)),
    ("subprocess", "getoutput", (f"touch {MARKER}",)),
    ("builtins", "exec", (CODE,)),
    ("io", "open", (MARKER, "w")),
    ("pathlib", "Path.touch", (MARKER,)),
    ("timeit", "timeit", ("0", CODE, "0", 1)),
    ("numpy", "savetxt", (MARKER, (1.0,))),
    ("torch", "save", (1, MARKER)),
    ("apportion.runs.whole_files", "write_whole", (MARKER, "")),
    ("builtins", "bytearray", (2**40,)),
    ("torch._utils", "_rebuild_tensor_v2", (None, 0, (2**40,), (1,), False, None)),
)
"""What crafted pickles call: most make ``MARKER``, and the last two ask for much memory."""


def flip(rng, own, other):
    """Flip one to eight bits."""
    found = bytearray(own)
    for _ in range(rng.choice((1, 1, 1, 2, 8)) if found else 0):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def change_range(rng, own, other):
    """Remove a range, write it twice, or replace it by zeros, as a lost block of a disk, or by noise."""
    first = rng.randrange(len(own) + 1)
    last = min(len(own), first + rng.choice((1, 4, 16, 100, 1000, len(own))))
    size = last - first
    return own[:first] + rng.choice((b"", 2 * own[first:last], bytes(size), rng.randbytes(size))) + own[last:]


def splice(rng, own, other):
    """Keep the beginning, down to nothing, or all but the last bytes, or join it and the end of another file."""
    if rng.random() < 0.3:
        return own[: max(0, len(own) - rng.randrange(1, 9))]
    end = rng.choice((b"", other[rng.randrange(len(other) + 1) :]))
    return own[: rng.randrange(len(own) + 1)] + end


def insert(rng, own, other):
    """Insert a few bytes: noise, a byte order mark, zeros, or a control character."""
    place = rng.choice((0, len(own), rng.randrange(len(own) + 1)))
    return own[:place] + rng.choice((rng.randbytes(rng.randrange(1, 9)), *MARKS)) + own[place:]


def compress(rng, own, other):
    """Compress the file without changing its name."""
    return rng.choice((gzip.compress(own, mtime=0), bz2.compress(own)))


def encode(rng, own, other):
    """Save the text in another encoding, or with other ends of lines."""
    if rng.random() < 0.4:
        return own.replace(b"\n", rng.choice(NEWLINES))
    text = own.decode("utf-8", "surrogateescape")
    if rng.random() < 0.2:
        return text.replace("e", "\u00e9", 3).encode("latin-1", "replace")
    return text.encode(rng.choice(ENCODINGS), "surrogatepass")


def change_number(rng, own, other):
    """Replace a number by an extreme one, or by a value of another type."""
    return _replace(rng, own, "number", lambda old: rng.choice(NUMBERS))


def change_string(rng, own, other):
    """Replace a string by an extreme one, or by a value of another type."""
    bare = rng.random() < 0.2
    return _replace(
        rng, own, "string", lambda old: rng.choice(NUMBERS) if bare else old[0] + rng.choice(STRINGS) + old[0]
    )


def change_word(rng, own, other):
    """Rename, misspell or empty a word, such as a key."""
    return _replace(
        rng,
        own,
        "word",
        lambda old: rng.choice((old + old, old[:-1], old.upper(), rng.choice(STRINGS), f"{old}.{old}", old[::-1])),
    )


def swap_tokens(rng, own, other):
    """Write a token of this file or of another in the place of a token."""
    there = [match[0] for match in TOKEN.finditer(_text(rng.choice((own, other))))]
    return _replace(rng, own, None, lambda old: rng.choice(there or [old]))


def change_lines(rng, own, other):
    """Remove, repeat, swap, shuffle or join lines, or take one of another file."""
    lines = own.splitlines(keepends=True) or [b""]
    place, there = rng.randrange(len(lines)), rng.randrange(len(lines))
    line, foreign = lines[place], rng.choice(other.splitlines(keepends=True) or [b""])
    match rng.randrange(5):
        case 0:
            rng.shuffle(lines)
        case 1:
            lines[place], lines[there] = lines[there], line
        case kind:
            lines[place : place + 1] = ([], [line, rng.choice((line, foreign))], [line.rstrip(b"\r\n")])[kind - 2]
    return b"".join(lines)


def nest(rng, own, other):
    """Put many brackets in the place of a value."""
    depth, (opened, closed) = rng.choice(DEPTHS), rng.choice(BRACKETS)
    inside = opened * depth + "0" + closed * rng.choice((depth, 0))
    return _replace(rng, own, rng.choice(("number", "string")), lambda old: inside)


def punctuate(rng, own, other):
    """Remove or double a punctuation mark."""
    places = [place for place, byte in enumerate(own) if byte in b"[]{}(),:=\"'\n#\\"]
    if not places:
        return flip(rng, own, other)
    place = rng.choice(places)
    return own[:place] + own[place : place + 1] * rng.choice((0, 2)) + own[place + 1 :]


def put_pickle(rng, own, other):
    """Put a pickle that runs code, or asks for much memory, in the place of the file or before it."""
    crafted = rng.choice(payloads())
    return rng.choice((crafted, crafted + own, _legacy(crafted)))


def payloads():
    """Return pickles that make ``MARKER`` if they are loaded without care, and some that ask for much memory."""
    doubled = b"(lp0\n" + b"".join(b"(g%d\ng%d\nlp%d\n" % (n, n, n + 1) for n in range(40)) + b"."
    huge = b"\x80\x05\x8d" + (2**62).to_bytes(8, "little") + b"."
    return [*(_call(*call) for call in CALLS), *(f"c{m}\n{name}\n.".encode() for m, name, _ in CALLS), doubled, huge]


BYTES: tuple[Mutation, ...] = (flip, flip, change_range, change_range, change_range, splice, splice, insert, compress)
TEXT: tuple[Mutation, ...] = (
    *BYTES, encode, change_number, change_number, change_number, change_string, change_string, change_word, swap_tokens,
    change_lines, change_lines, nest, punctuate,
)  # fmt: skip
PICKLED: tuple[Mutation, ...] = (*BYTES, put_pickle, put_pickle)


def change_arguments(rng, own, other):
    """Return the command line ``own`` with one to three arguments changed. No argument holds a zero byte."""
    found = list(own)
    for _ in range(rng.choice((1, 1, 2, 3))):
        place = rng.randrange(len(found) + 1)
        old = found[place : place + 1]
        changes: tuple[Callable[[], list[str]], ...] = (
            lambda: [],
            lambda old=old: 2 * old,
            lambda old=old: [rng.choice(ARGUMENTS), *old],
            lambda old=old: [rng.choice(other), *old],
            lambda: [rng.choice(NUMBERS)],
            lambda: [rng.choice(STRINGS)],
            lambda old=old: [_changed(rng, each) for each in old],
            lambda old=old: [_changed(rng, each) for each in old],
        )
        found[place : place + 1] = rng.choice(changes)()
    return [
        each.replace("\0", "").encode("utf-8", "replace").decode("utf-8", "surrogateescape")[:100_000] for each in found
    ]


def _changed(rng, argument):
    mutation = rng.choice((change_number, change_string, change_word, punctuate, flip))
    return _text(mutation(rng, argument.encode("utf-8", "surrogateescape"), b"x"))


def _call(module, name, arguments):
    """Return a pickle that calls ``module.name`` with ``arguments``."""
    named = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    return b"\x80\x04" + named + b"\x93" + pickle.dumps(arguments, 2)[2:-1] + b"R."


def _legacy(crafted):
    """Return a file in torch's old format, whose first three pickles are its magic number, protocol and system."""
    head = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}})
    return b"".join(pickle.dumps(each, 2) for each in head) + crafted


def _replace(rng, own, kind, new):
    """Return the text with one token of this kind, or of any, changed by ``new``. Without such a token flip a bit."""
    text = _text(own)
    found = [match for match in TOKEN.finditer(text) if kind in (None, match.lastgroup)]
    if not found:
        return flip(rng, own, own)
    match = rng.choice(found)
    return _bytes(text[: match.start()] + new(match[0]) + text[match.end() :])


def _text(content):
    return content.decode("utf-8", "surrogateescape")


def _bytes(text):
    """Return the text in UTF-8, with half surrogates as they are."""
    return b"".join(
        each.encode("utf-8", "surrogateescape" if "\udc80" <= each <= "\udcff" else "surrogatepass") for each in text
    )
