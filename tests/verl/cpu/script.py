"""Answers that the server returns instead of sampling, if the first word of a question asks for it."""

from tests.verl.cpu.assets import TOOL

CALL = '<tool_call>\n{"name": "successor", "arguments": {"number": 7}}\n</tool_call><|im_end|>'
USER, REPLY = "<|im_start|>user\n", "<|im_start|>tool\n"


def script(prompt, number):
    """The text of the answer to the ``number``-th request of a prompt's text, "" where the policy is to sample it.

    "tool ": every second request calls the tool; what follows the tool's reply is sampled.
    """
    question = prompt.partition(USER)[2]
    return CALL if question.startswith(TOOL) and REPLY not in question and number % 2 else ""
