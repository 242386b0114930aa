"""verl's processes are forked from one that has imported verl: see ``tests.warm``. Here is what Ray needs for that."""

import importlib
import os
import sys

os.environ |= {"RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": str(os.getpid())}
# Ray reads these where it is imported, and cannot know then of which job and raylet a worker will be: here every run
# has its own Ray with one job, and a worker waits for the end of this process, not of its raylet.
import ray
import ray.actor

from tests.warm import serve

IMPORTED = (
    "verl.trainer.ppo.v1",
    "verl.workers.engine_workers",
    "verl.utils.config",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen2.tokenization_qwen2",
    "tests.verl.cpu.server",
)


class _SystemRandom:
    """Ray's identifiers of actor classes, without its random generator: see ``imported``."""

    @staticmethod
    def from_random():
        return ray.ActorClassID(os.urandom(ray.ActorClassID.size()))


def imported():
    """Import what every process needs, and check that processes can then be forked.

    Ray seeds its generator of identifiers where it first needs one. That must not be here: processes would share it,
    and now and then two of them would give the same name to different objects.
    """
    ray.actor.ActorClassID = _SystemRandom  # of classes that are actors by a decorator, while modules are imported
    for name in IMPORTED:
        importlib.import_module(name)
    ray.actor.ActorClassID = ray.ActorClassID
    if _identifier() == _identifier():
        raise RuntimeError("Ray's generator must not be seeded before processes are forked; find the import that does")


def _identifier():
    """An identifier that a forked process takes from Ray's generator."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.write(writer, ray.PlacementGroupID.of(ray.JobID.from_int(1)).binary())
        os._exit(0)
    os.waitpid(process, 0)
    os.close(writer)
    with open(reader, "rb") as found:
        return found.read()


if __name__ == "__main__":
    imported()
    serve(sys.argv[1])
