"""A policy that verl trains in a second, its tokenizer, and questions of all eases; nothing is downloaded.

The policy is untrained: a question whose ground truth is k is answered right about k times in 100.
"""

import string

import pandas
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL = ("<pad>", "<unk>", "<|im_start|>", "<|im_end|>")
MARKS = ("<tool_call>", "</tool_call>")
ALPHABET = string.digits + string.ascii_letters + string.punctuation + " \n"
PAD, END = SPECIAL.index("<pad>"), SPECIAL.index("<|im_end|>")
TOOL = "tool "
EASE = (0, 8, 20, 35, 50, 65, 80, 94)
TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] or '') }}"
    "{% for call in m.get('tool_calls') or [] %}"
    "{{ '<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer():
    """A character is a token, a newline too, and so are the marks of a tool call.

    Bytes are written as Qwen's tokenizer does: by the policy's type, that is what transformers makes of the folder.
    """
    letters = [ByteLevel(add_prefix_space=False).pre_tokenize_str(letter)[0][0] for letter in ALPHABET]
    tokenizer = Tokenizer(BPE(vocab={word: i for i, word in enumerate((*SPECIAL, *MARKS, *letters))}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_tokens(list(MARKS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=TEMPLATE,
    )


def make_policy(seed=0):
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(SPECIAL) + len(MARKS) + len(ALPHABET),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            pad_token_id=PAD,
            eos_token_id=END,
            bos_token_id=None,
            tie_word_embeddings=False,
        )
    )


def make_questions(count=16, call=lambda i: ""):
    """Rows in verl's format, each with a prompt of its own. ``call`` gives the words that ``script`` heeds."""
    return [
        {
            "data_source": "toy",
            "prompt": [{"role": "user", "content": f"{call(i)}q{i:03d}{'+' * (i % 3)}"}],
            "ability": "toy",
            "reward_model": {"style": "rule", "ground_truth": str(EASE[i % len(EASE)])},
            "extra_info": {"index": i, "split": "train"},
        }
        for i in range(count)
    ]


def write(folder):
    """Writes the policy and the questions: train.parquet, val.parquet and tools.parquet, of which half call a tool."""
    make_policy().save_pretrained(folder / "policy")
    make_tokenizer().save_pretrained(folder / "policy")
    write_questions(folder / "train.parquet", make_questions())
    write_questions(folder / "val.parquet", make_questions(4))
    write_questions(folder / "tools.parquet", make_questions(call=lambda i: TOOL if i % 2 else ""))
    return folder


def write_questions(path, questions):
    """Writes rows of ``make_questions`` to a parquet file; for a test that has questions of its own."""
    pandas.DataFrame(questions).to_parquet(path)
    return path
