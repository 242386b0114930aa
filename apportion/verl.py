"""``python -m apportion.verl``: verl's trainer under an allocator, with all of verl's own overrides.

The group ``allocation`` is added to verl's configuration; ``--help`` lists the allocators, ``--cfg job`` what can be
set: ``python -m apportion.verl allocation=vip allocation.allocator.low=4 actor_rollout_ref.rollout.n=8``.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command; code 2 and one line on stderr where verl, an extra, is missing."""
    try:
        from apportion.integrations.verl.command import main as command  # noqa: PLC0415 - verl is an optional extra
    except ModuleNotFoundError as error:
        if str(error.name).startswith("apportion"):
            raise
        sys.stderr.write(
            f"error: python -m apportion.verl needs {error.name}, which is not installed; "
            "pip install 'apportion[verl]'\n"
        )
        sys.exit(2)
    command()


if __name__ == "__main__":
    main()
