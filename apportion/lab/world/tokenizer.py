"""The ledger vocabulary of 47 tokens as a Hugging Face tokenizer."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from apportion.lab.world.task import EOS, PAD, TOKEN_PATTERN, VOCABULARY


def ledger_tokenizer() -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer. An operation such as ``+3`` is one token; spaces are ignored.

    It adds no end token and pads on the left, as ``generate`` needs it. Text that is not ledger text raises an
    exception, because there is no unknown token.

    Note: in the folder of a Qwen2 model, ``AutoTokenizer`` (transformers 5) replaces a saved tokenizer's splitting by
    Qwen2's, which loses the operations. It does not if ``auto_map`` is set, so this tokenizer sets it. No remote code
    has that name, so loading with ``trust_remote_code=True`` is an error.

    >>> tokenizer = ledger_tokenizer()
    >>> tokenizer.tokenize("7 a+3 b*7 =")
    ['7', 'a', '+3', 'b', '*7', '=']
    >>> tokenizer.decode(tokenizer.encode("a0b0c6"))
    'a0b0c6'
    """
    backend = Tokenizer(models.WordLevel({token: index for index, token in enumerate(VOCABULARY)}))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s+"), behavior="removed"),
            pre_tokenizers.Split(Regex(TOKEN_PATTERN), behavior="isolated"),
        ]
    )
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=VOCABULARY[PAD],
        eos_token=VOCABULARY[EOS],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=128,
        auto_map={"AutoTokenizer": [None, "tokenizer.LedgerTokenizer"]},
    )
