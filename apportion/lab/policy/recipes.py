"""What base policies there are, and how each is trained. Nothing here needs torch, so settings are checked at once."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from apportion.checks import check_choice, check_positive
from apportion.lab.world.demonstrator import CAREFUL, EASY, FORKS, HARD, MEDIUM, Demonstrator
from apportion.lab.world.task import TASKS
from apportion.untrusted import parse_json, read_config, shown

FORMAT = 1  # raise it when the policy, the vocabulary or the training loop changes, so that old caches are not found


@dataclass(frozen=True, slots=True)
class Stage:
    """Supervised learning from one demonstrator, with ``steps`` and a peak ``learning_rate``."""

    demonstrator: Demonstrator
    steps: int
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that a base policy depends on. ``steps`` scales the steps, warm-up and sequences of every stage.

    The first of the ``operation_weights`` is for problems with the fewest operations, the next for one more.
    """

    stages: tuple[Stage, ...]
    steps: float = 1.0
    sequences: int = 120_000
    operation_weights: tuple[float, ...] = (1.0, 1.5, 2.0, 2.5, 3.0)
    batch_size: int = 64
    warm_up_steps: int = 100
    final_learning_rate: float = 0.1
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip: float = 1.0
    policy_seed: int = 0
    data_seed: int = 7
    order_seed: int = 0
    task: str = "ledger"

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("a recipe needs at least one stage, got none; give Stage(EASY, 1700, 3e-3)")
        check_positive(self, "steps")
        check_choice("task", self.task, TASKS)

    @property
    def directory(self) -> Path:
        """The folder of the cached policy. Its name is a hash of the recipe and the format."""
        settings = asdict(self)
        if self.task == "ledger":  # the name leaves out the default
            del settings["task"]
        content = json.dumps([FORMAT, settings], sort_keys=True)
        digest = hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
        return cache_directory() / f"ledger-base-{digest}"


_WARM_START = Stage(EASY, steps=1700, learning_rate=3e-3)
RECIPES = {
    "easy": Recipe((_WARM_START, Stage(EASY, steps=700, learning_rate=2e-3))),
    "medium": Recipe((_WARM_START, Stage(MEDIUM, steps=700, learning_rate=2e-3))),
    "hard": Recipe((_WARM_START, Stage(HARD, steps=700, learning_rate=2e-3))),
    "forks": Recipe(
        (Stage(CAREFUL, steps=1300, learning_rate=3e-3), Stage(FORKS, steps=700, learning_rate=2e-3)), task="forks"
    ),
    "notes": Recipe(
        (_WARM_START, Stage(MEDIUM, steps=700, learning_rate=2e-3)), operation_weights=(1.0, 1.5, 2.0), task="notes"
    ),
}


def check_base(base: str) -> None:
    """Raise ValueError unless ``base`` names a recipe or a folder with a saved policy."""
    if base not in RECIPES and not os.path.isfile(Path(base) / "config.json"):
        raise ValueError(
            f"base must be {', '.join(RECIPES)}, or a folder with a saved policy, got {shown(base)}; check the spelling"
        )


def task_of(base: str) -> str:
    """Return the task that ``base`` has learned, a key of ``TASKS``. A folder that names none has learned "ledger".

    >>> task_of("medium"), task_of("forks")
    ('ledger', 'forks')
    """
    check_base(base)
    if base in RECIPES:
        return RECIPES[base].task
    config = Path(base) / "config.json"
    try:
        task: str = parse_json(read_config(config)).get("lab_task", "ledger")
        check_choice("lab_task", task, TASKS)
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"base must be a saved policy, got {config}, which is none ({error}); correct it") from error
    return task


def is_trained(base: str) -> bool:
    """Return whether ``base_policy`` finds ``base`` trained."""
    return base not in RECIPES or RECIPES[base].directory.exists()


def cache_directory() -> Path:
    """Return ``$XDG_CACHE_HOME/apportion``, or ``~/.cache/apportion``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "apportion"
