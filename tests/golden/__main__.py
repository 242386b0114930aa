"""``make golden``: compare what the library decides and says now with the committed record.

``--write PART`` replaces the record of a part. Do that in the commit that changes it, whose message says why.
"""

import argparse
import logging
import sys
import time

from tests.golden.compare import report
from tests.golden.parts import PARTS, keep, kept, now


def main():
    """Print the differences of each part. Return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description="Compare with the golden record.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; all by default")
    parser.add_argument("--write", action="store_true", help="replace the record by what the code does now")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    different = False
    for part in given.parts or PARTS:
        started = time.perf_counter()
        if given.write:
            keep(part)
            continue
        found = report(part, kept(part), now(part))
        different |= bool(found)
        print(found or f"{part}: as recorded ({time.perf_counter() - started:.0f} s)")  # noqa: T201
    return int(different)


if __name__ == "__main__":
    sys.exit(main())
