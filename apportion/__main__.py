"""``python -m apportion``, and the command ``apportion``."""

import sys

from apportion.runs.signals import run_command


def main() -> None:
    """Run the command line. Exit with code 2 and one line if typer, an extra, is missing."""
    run_command(_run)


def _run() -> None:
    try:
        from apportion.cli import app  # noqa: PLC0415 - typer is an optional extra
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.stderr.write("apportion's command line needs typer, which is not installed; pip install 'apportion[cli]'\n")
        sys.exit(2)
    app(prog_name="apportion")


if __name__ == "__main__":
    main()
