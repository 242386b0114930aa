"""Whether a test asks for a fault, by files in the folder ``faults`` of its records; see ``faults``."""

import os
from pathlib import Path


def asked(fault, index, step=0):
    """Whether the folder asks for ``fault``; of those for one rollout one is taken away."""
    folder = Path(os.environ["VERL_TEST_RECORDS"], "faults")
    if (folder / f"{fault}_{index}").exists() or (folder / f"{fault}_{index}@{step}").exists():
        return True
    for path in sorted([*folder.glob(f"{fault}_{index}.*"), *folder.glob(f"{fault}_{index}@{step}.*")]):
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        return True
    return False
