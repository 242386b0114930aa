"""Input from outside the program: files and JSON that a user gives, read within bounds and quoted in errors.

Whatever is given costs one error, at once: a pipe or a device is not opened, a file that is too long is not read, text
that is nested too deep is not walked through, and an error quotes no more than a line of it.
"""

import json
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from reprlib import Repr
from typing import Any, TextIO

CONFIG_BYTES = 2**20
"""The largest configuration: 1 MiB."""

TABLE_BYTES = 2**34
"""The largest file of rows: 16 GiB."""

LINE_CHARACTERS = 2**24
"""The longest line of a file of rows."""

MAX_DEPTH = 64
"""The deepest nesting of tables, objects and arrays."""

QUOTED, ERROR = 80, 2000
"""Most characters of a value that an error quotes, and of a whole error on the command line."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class _Quoted(Repr):
    """A ``repr`` in bounded time: of the first entries only, and not of integers with thousands of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 4, 4 * QUOTED, QUOTED
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = QUOTED // 2

    def repr_str(self, x: str, level: int) -> str:
        return repr(x if len(x) <= self.maxstring else x[: self.maxstring])

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 4 * QUOTED else f"an integer of {x.bit_length()} bits"


def shown(value: Any) -> str:
    """Return ``value`` as errors quote it, in one line of at most 80 characters.

    >>> shown("a\\nb"), shown(10**5000), len(shown("x" * 10**6))
    ("'a\\\\nb'", 'an integer of 16610 bits', 80)
    """
    text = _Quoted().repr(value)
    return text if len(text) <= QUOTED else f"{text[: QUOTED - 3]}..."


def one_line(text: str) -> str:
    """Return ``text`` as a terminal may get it: in one line of bounded length, with control characters escaped.

    The end is kept if the middle is cut, because it says what to do.

    >>> one_line("a\\n\\x1b[31mb")
    'a \\\\x1b[31mb'
    """
    if len(text) > ERROR:
        text = f"{text[: ERROR * 3 // 4]} ... {text[-ERROR // 4 :]}"
    words = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)


def check_file(path: Path, most_bytes: int) -> None:
    """Raise OSError unless ``path`` is a regular file of at most ``most_bytes``.

    Pipes and devices are refused because they may never end, or never begin.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError("it is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is a pipe or a device and not a file")
    if status.st_size > most_bytes:
        raise OSError(f"it has {status.st_size:,} bytes, and at most {most_bytes:,} are read")


def read_config(path: Path) -> str:
    """Return the text of the configuration at ``path``, which is UTF-8. Raise OSError or UnicodeDecodeError."""
    check_file(path, CONFIG_BYTES)
    with path.open("rb") as file:
        return file.read(CONFIG_BYTES).decode("utf-8-sig")


def read_lines(file: TextIO) -> Iterator[str]:
    """Yield the lines of an open file of rows. Raise OSError for a line of more than ``LINE_CHARACTERS``."""
    while line := file.readline(LINE_CHARACTERS):
        if len(line) == LINE_CHARACTERS:
            raise OSError(f"it has a line of {LINE_CHARACTERS:,} characters or more")
        yield line


def _constant(word: str) -> Any:
    raise ValueError(f"{word}, which is not JSON")


def parse_json(text: str | bytes, constant: Callable[[str], Any] = _constant) -> Any:
    """Return the value of the JSON ``text``. Raise ValueError, with a short reason, for anything unusable.

    Nesting beyond ``MAX_DEPTH``, integers of more than 4,300 digits, repeated keys, lone surrogates, NaN and Infinity
    are refused. A ``constant`` such as float reads the last two.

    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the key 'a' twice
    """
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise ValueError(error.msg) from error
    except UnicodeDecodeError:
        raise
    except RecursionError:
        raise ValueError(f"more than {MAX_DEPTH} levels of nesting") from None
    except ValueError as error:
        raise ValueError("an integer of thousands of digits" if "digits" in str(error) else str(error)) from error
    check_depth(value)
    if isinstance(text, bytes) or _SURROGATE.search(text):  # json accepts lone surrogates in bytes
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("half of a surrogate pair, which is not Unicode") from error
    return value


def parse_number(text: str) -> float:
    """Return the number in ``text``, written in digits from 0 to 9. Raise ValueError for anything else.

    ``float`` also takes underscores between digits, and the digits of other scripts.

    >>> parse_number(" 1e-3")
    0.001
    >>> parse_number("1_000")
    Traceback (most recent call last):
    ValueError: a number must be written in digits, got '1_000'; correct it
    """
    if "_" in text or not text.isascii():
        raise ValueError(f"a number must be written in digits, got {shown(text)}; correct it")
    return float(text)


def check_depth(value: Any) -> None:
    """Raise ValueError if more than ``MAX_DEPTH`` mappings and lists lie within each other in ``value``."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for each in level for item in _entries(each) if isinstance(item, (dict, list))]
        if not level:
            return
    raise ValueError(f"more than {MAX_DEPTH} levels of nesting")


def _entries(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {shown(twice)} twice")
    return made
