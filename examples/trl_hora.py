"""Train with TRL's GRPO trainer and let HORA decide how many rollouts each prompt gets, with one more argument.

The policy is the lab's, with 200,640 parameters, trained here on a few demonstrations, so that this runs on a CPU in
seconds. For another model put its name in place of ``folder``, with your own questions and reward function.
"""

from tempfile import TemporaryDirectory

from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig

from apportion import HORA
from apportion.lab.policy.base import trained_policy
from apportion.lab.policy.export import right, row
from apportion.lab.policy.recipes import Recipe, Stage
from apportion.lab.world.demonstrator import EASY
from apportion.lab.world.task import problem_pool
from apportion.trl import AllocatedGRPOTrainer

recipe = Recipe((Stage(EASY, steps=200, learning_rate=4e-3),), sequences=12_000, operation_weights=(4.0, 2.0, 1.0))
trained_policy(recipe)  # ten seconds, and none the next time
folder = str(recipe.directory)
questions = [row(problem) for problem in problem_pool(600, seed=1) if len(problem.operations) == 1]


def exact(completions: list[str], answer: list[str], **columns: object) -> list[float]:
    """Return 1.0 for each correct completion."""
    return [float(right(*pair)) for pair in zip(completions, answer, strict=True)]


with TemporaryDirectory() as results:
    trainer = AllocatedGRPOTrainer(
        model=folder,
        reward_funcs=exact,
        args=GRPOConfig(
            output_dir=results,
            max_steps=10,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            num_generations=8,  # on average, and in all as many as with any other allocator
            per_device_train_batch_size=256,
            max_completion_length=4,
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(questions),
        allocator=HORA(pre_rollouts=4, rollouts_per_prompt=8, high=32),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()

print("step  rollouts a prompt  success  informative groups")
for log in trainer.state.log_history[:-1]:
    least, most = log["allocation/n_min"], log["allocation/n_max"]
    success, informative = log["allocation/observed_success"], log["allocation/informative"]
    print(f"{log['step']:4}  {least:7.0f} to {most:<7.0f}  {success:7.2f}  {informative:18.2f}")
