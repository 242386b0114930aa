"""A recipe of the cookbook itself, with its own data set, environments and renderer."""

from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDatasetBuilder
from tinker_cookbook.tokenizer_utils import register_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from apportion import HORA
from apportion.tinker import allocated

WORDS = ("<unk>", "<eos>", *"0123456789+?:UserAitanWh")


def characters():
    """Return a tokenizer of characters, most of which it does not know."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>")


def test_the_arithmetic_of_the_cookbook(configured, run, service):
    register_tokenizer("tests/characters", characters)
    problems = ArithmeticDatasetBuilder(
        batch_size=3,
        model_name_for_tokenizer="tests/characters",
        renderer_name="role_colon",
        n_batches=2,
        group_size=4,
        include_fewshot=False,
    )
    config = configured(model_name="tests/characters", dataset_builder=problems)
    log = run(allocated(config, HORA(pre_rollouts=2, rollouts_per_prompt=4)))
    assert [len(datums) for datums in service.trained] == [12, 12]
    assert log[0]["env/all/allocation/rounds"] == 2 and "env/all/correct" in log[0]
