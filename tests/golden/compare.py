"""Two records beside each other: integers, texts and names must be equal, floats equal to 1e-9 of their size.

Fits are compared to 1e-6: empirical Bayes ends a search, and a Gaussian process solves equations. The last digits of
both depend on the number of threads and on the processor (four kernels of OpenBLAS were tried). Counts and names that
follow from them must still be equal.
"""

import difflib
import math
import re

RELATIVE, ABSOLUTE = 1e-9, 1e-12
FITTED = re.compile(r"(predictors / (gp|empirical_bayes)|allocators / (vip|knapsack)|selectors / \w+ / state) / ")
FITTED_RELATIVE, FITTED_ABSOLUTE = 1e-6, 1e-9
"""Where a record holds fits, and how near they must be."""

SHOWN = 20
"""Differences of a part that are shown; the others are counted."""


def differences(kept, now, path=""):
    """Yield a line or a few for each place at which ``now`` differs from the ``kept`` record."""
    if isinstance(kept, dict) and isinstance(now, dict):
        for key in kept.keys() | now.keys():
            below = f"{path} / {key}" if path else str(key)
            if key not in now:
                yield f"{below}: is gone"
            elif key not in kept:
                yield f"{below}: is new"
            else:
                yield from differences(kept[key], now[key], below)
    elif isinstance(kept, list) and isinstance(now, list):
        if len(kept) != len(now):
            yield f"{path}: had {len(kept)} entries, has {len(now)}"
        for i, (old, new) in enumerate(zip(kept, now, strict=False)):
            yield from differences(old, new, f"{path}[{i}]")
    elif isinstance(kept, str) and isinstance(now, str):
        if kept != now:
            yield f"{path}: {changed(kept, now)}"
    elif not equal(kept, now, fitted=bool(FITTED.match(path))):
        yield f"{path}: was {kept!r}, is {now!r}"


def equal(kept, now, *, fitted=False):
    """Return whether two values are equal: floats to the tolerance, NaN to NaN, all else exactly and of one type."""
    if isinstance(kept, float) and isinstance(now, float):
        relative, absolute = (FITTED_RELATIVE, FITTED_ABSOLUTE) if fitted else (RELATIVE, ABSOLUTE)
        near = math.isclose(kept, now, rel_tol=relative, abs_tol=absolute)
        return near or (math.isnan(kept) and math.isnan(now))
    return type(kept) is type(now) and kept == now


def changed(kept, now):
    """Return both texts, or of long ones the lines that differ."""
    if "\n" not in kept + now:
        return f"was {kept!r}, is {now!r}"
    lines = difflib.unified_diff(kept.splitlines(), now.splitlines(), lineterm="", n=0)
    return "\n".join(f"    {line}" for line in [*lines][2:])


def report(part, kept, now):
    """Return the differences of a part as text, at most ``SHOWN`` of them; "" if there are none."""
    found = sorted(differences(kept, now))
    if not found:
        return ""
    more = [f"... and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "\n".join([f"{part}: {len(found)} differences", *found[:SHOWN], *more])
