"""``python -m apportion.verl``: verl's trainer with an allocator. It takes all of verl's own overrides.

It adds the group ``allocation`` to verl's configuration. ``--help`` lists the allocators, ``--cfg job`` all settings:
``python -m apportion.verl allocation=vip allocation.allocator.low=4 actor_rollout_ref.rollout.n=8``.
"""

import sys

from apportion.runs.signals import run_command
from apportion.toml import ConfigError


def main() -> None:
    """Run the command. Exit with code 2 and one line on stderr for a misspelt override, or without verl."""
    try:
        from apportion.verl.spelling import check_overrides  # noqa: PLC0415 - it needs Hydra, which comes with verl

        check_overrides(sys.argv[1:])
        from apportion.verl.command import main as command  # noqa: PLC0415 - verl is an optional extra
    except ModuleNotFoundError as error:
        if str(error.name).startswith("apportion"):
            raise
        sys.stderr.write(
            f"error: python -m apportion.verl needs {str(error.name).partition('.')[0]}, which is not installed; "
            "pip install 'apportion[verl]'\n"
        )
        sys.exit(2)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    command()


if __name__ == "__main__":
    run_command(main)
