"""Answers that the server returns instead of sampling, if the first word of a question asks for it."""

from tests.verl.cpu.assets import LOOK, TOOL

CALL = '<tool_call>\n{"name": "successor", "arguments": {"number": 7}}\n</tool_call><|im_end|>'
SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query": "q"}}\n</tool_call><|im_end|>'
USER, REPLY = "<|im_start|>user\n", "<|im_start|>tool\n"


def script(prompt, number):
    """The text of the answer to the ``number``-th request of a prompt's text, "" where the policy is to sample it.

    "tool ": every second request calls the tool; what follows the tool's reply is sampled.
    "look ": every second request searches, and once more after the first reply; what follows is sampled.
    """
    question = prompt.partition(USER)[2]
    if question.startswith(LOOK) and question.count(REPLY) < 2 and (number % 2 or REPLY in question):
        return SEARCH
    return CALL if question.startswith(TOOL) and REPLY not in question and number % 2 else ""
