"""An adapter for an engine with its own scheduler: which prompt is next, how many rollouts, what came of them."""

import asyncio
import random

from apportion import Prompt
from apportion.engines.contract import EngineGroups
from apportion.scheduler.decisions import TrainerAllocation


class Engine:  # yours: its workers take scenarios, and its trainer takes whatever is finished
    def __init__(self, scenarios, rollout, workers):
        self.scenarios, self.rollout, self.workers, self.finished = scenarios, rollout, workers, []

    async def run(self, groups):
        async def work():
            while len(self.finished) < groups:
                self.finished.append(await self.rollout(next(self.scenarios)))

        await asyncio.gather(*(work() for _ in range(self.workers)))


class Scenarios:  # the adapter
    def __init__(self, prompts, **decisions):
        self.groups = EngineGroups(TrainerAllocation(**decisions), prompts)

    def __next__(self):
        return self.groups.next()  # which prompt, and how many rollouts

    async def rollout(self, opened):
        rollouts, more = [], opened.count
        while more:  # a rule of several rounds asks again
            new = [self.groups.rollout(await self.sample(opened.prompt)) for _ in range(more)]
            more = self.groups.observe(opened.key, new)
            rollouts += new
        return opened.prompt, self.groups.advantages([opened.key] * len(rollouts), rollouts)

    async def sample(self, prompt):  # your policy and verifier: a reward
        await asyncio.sleep(0)
        return float(random.random() < int(prompt.text) / 40)


adapter = Scenarios([Prompt(str(q)) for q in range(40)], allocator="hora", selection="mixed", estimator="rloo")
engine = Engine(adapter, adapter.rollout, workers=4)
asyncio.run(engine.run(groups=20))
assert len(engine.finished) >= 20 and len({len(advantages) for _, advantages in engine.finished}) > 1

resumed = Scenarios([Prompt(str(q)) for q in range(40)], allocator="hora", selection="mixed", estimator="rloo")
resumed.groups.load_state_dict(adapter.groups.state_dict())  # what was in flight comes first
asyncio.run(Engine(resumed, resumed.rollout, workers=4).run(groups=20))
print(f"{len(engine.finished)} groups, of {sorted({len(each) for _, each in engine.finished})} rollouts")
