import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from apportion.lab.world.task import EOS, PAD, VOCABULARY, encode, problem_pool
from apportion.lab.world.tokenizer import ledger_tokenizer


@pytest.fixture(scope="module", params=["built", "loaded"])
def tokenizer(request, tmp_path_factory):
    built = ledger_tokenizer()
    if request.param == "built":
        return built
    directory = tmp_path_factory.mktemp("tokenizer")
    built.save_pretrained(directory)
    return AutoTokenizer.from_pretrained(directory, local_files_only=True)


def test_it_is_a_hugging_face_tokenizer_of_47_tokens(tokenizer):
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert len(tokenizer) == 47
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (PAD, EOS)
    assert tokenizer.convert_ids_to_tokens(list(range(47))) == list(VOCABULARY)


def test_it_encodes_as_the_task_does(tokenizer):
    for problem in problem_pool(200, seed=1):
        assert tokenizer(problem.text)["input_ids"] == encode(problem.text)
        assert tokenizer.encode(problem.completion) == encode(problem.completion)


def test_completions_decode_to_their_text(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a0b0c6")) == "a0b0c6"
    tokens = [*encode("a0b0c6"), EOS, PAD]
    assert tokenizer.decode(tokens, skip_special_tokens=True) == "a0b0c6"
    assert tokenizer.decode(tokens) == "a0b0c6<eos><pad>"
    assert tokenizer.encode("a0<eos>") == [*encode("a0"), EOS]


def test_foreign_text_is_an_error(tokenizer):
    with pytest.raises(Exception, match="UNK"):
        tokenizer("7 a/3 =")
