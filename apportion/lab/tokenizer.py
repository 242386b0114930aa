"""The ledger vocabulary as a Hugging Face tokenizer: 47 words, built in memory, saved and loaded like any other."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from apportion.lab.task import EOS, PAD, TOKEN_PATTERN, VOCABULARY


def ledger_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer in which an operation such as ``+3`` is one token and spaces are none.

    It adds no end token, pads on the left as ``generate`` needs it, and raises an exception on text that is not ledger
    text (there is no unknown token to hide it).

    Note: beside a Qwen2 model, ``AutoTokenizer`` (transformers 5) takes every saved tokenizer for a mistake and
    silently puts Qwen2's own splitting over this vocabulary, which loses the operations. It does not where ``auto_map``
    is set, so this one sets it; no remote code stands behind the name, and loading with ``trust_remote_code=True`` is
    an error.

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
