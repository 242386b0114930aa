"""``python -m apportion.trl grpo|rloo --config job.yaml``: TRL's own command line with an allocator.

It takes all arguments of ``trl grpo`` and ``trl rloo``, and the settings of ``TRLAllocation``: a name as a flag, such
as ``--allocator vip``, and a table in the YAML, such as ``allocator: {name: vip, high: 24}``. ``--dry-run`` prints the
plan.
"""

import sys

from apportion.runs.signals import run_command


def main() -> None:
    """Run the command. Exit with code 2 and one line on stderr for another word than grpo and rloo, or without TRL."""
    match sys.argv[1:]:
        case ["grpo" | "rloo" as algorithm, *words]:
            pass
        case words:
            sys.stderr.write(
                f"error: the first word must be grpo or rloo, got {words[:1]}; write one before --config\n"
            )
            sys.exit(2)
    try:
        from apportion.trl.command import run  # noqa: PLC0415 - TRL is an optional extra
    except ModuleNotFoundError as error:
        if str(error.name).startswith("apportion"):
            raise
        sys.stderr.write(
            f"error: python -m apportion.trl needs {str(error.name).partition('.')[0]}, which is not installed; "
            "pip install 'apportion[trl]'\n"
        )
        sys.exit(2)
    sys.exit(run(algorithm, words))


if __name__ == "__main__":
    run_command(main)
