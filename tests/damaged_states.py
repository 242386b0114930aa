"""Damage in every place of a saved state: it is refused by a ValueError that changes nothing, or it does no harm."""

import copy

import numpy as np

NONSENSE = {
    "None": None,
    "text": "evil",
    "nan": float("nan"),
    "infinity": float("inf"),
    "negative": -1,
    "list": [1, 2, 3],
    "dict": {"other": 1},
    "nan array": np.full((2, 2), np.nan),
    "object array": np.array([None, "x"], dtype=object),
    "nested": {"a": {"b": [None]}},
    "nested list": [[None], None],
    "number": 10**400,
    "huge": 1e308,
    "zeros": [0.0, 0.0],
}
SEVERAL = 2
"""Of the entries of a list or an array, and of those of a dict with ids, so many are damaged."""


def places(state, path=()):
    """Yield the path of everything in ``state``, itself included."""
    yield path
    if isinstance(state, dict):
        for key in state if len(state) < 20 else [*state][:SEVERAL]:
            yield from places(state[key], (*path, key))
    elif isinstance(state, list | tuple):
        for index in range(min(len(state), SEVERAL)):
            yield from places(state[index], (*path, index))


def at(state, path):
    """Return what is at ``path``."""
    for key in path:
        state = state[key]
    return state


def replaced(state, path, value):
    """Return a copy of ``state`` with ``value`` at ``path``."""
    if not path:
        return value
    key, copied = path[0], copy.copy(state) if not isinstance(state, tuple) else list(state)
    copied[key] = replaced(state[key], path[1:], value)
    return tuple(copied) if isinstance(state, tuple) else copied


def damages(value):
    """Yield what may be in the place of ``value``: nonsense, an entry too many or too few, and numbers out of range."""
    yield from NONSENSE.values()
    if isinstance(value, dict):
        yield from ({key: own for key, own in value.items() if key != gone} for gone in [*value][:20])
        yield from (value | {"another": 1}, value | {3: 1})
    if isinstance(value, list):
        yield from (value[:-1], value + value[:1], [*value, None])
    if isinstance(value, np.ndarray) and value.ndim:
        yield from (value[:-1], np.concatenate([value, value]), value.astype(object))
        for number in (np.nan, np.inf, -1e300, 1e300) if value.dtype.kind == "f" else (-(2**62), 2**62):
            if value.size:
                with np.errstate(over="ignore"):
                    yield np.concatenate([np.full_like(value[:1], number), value[1:]])


def equal(one, other):
    """Return whether two states are equal, arrays and tensors to the last bit."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if hasattr(one, "equal"):  # a tensor; torch is not imported, because learners are tested without it
        return one.equal(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def check_damage(make, state, use=lambda loaded: None, paths=places):
    """Load every damage of ``state`` into what ``make`` returns. ``use`` what took it. Return how many were refused."""
    refused = 0
    for path in paths(state):
        for damaged in damages(at(state, path)):
            loaded = make()
            before = copy.deepcopy(loaded.state_dict())
            try:
                loaded.load_state_dict(replaced(state, path, damaged))
            except ValueError:
                refused += 1
                assert equal(before, loaded.state_dict()), (path, damaged)
            else:
                use(loaded)
    return refused
