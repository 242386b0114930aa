r"""Prompt templates: those of the papers by name, and texts of the user.

A template turns a question into the prompt for the policy, and names the extractor that reads the answers.

References: DAPO (Yu et al., 2025, arXiv 2503.14476), the wording of its data set; VIP (Nguyen et al., 2026, arXiv
2602.01601), figures 4 and 5; OpenAI's simple-evals, the wording of multiple-choice questions.
"""

from dataclasses import dataclass

from apportion.answers.extraction import EXTRACTORS
from apportion.checks import choices
from apportion.questions import TEMPLATE, Question
from apportion.untrusted import shown

STEPS = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem."
)
REMINDER = 'Remember to put your answer on its own line after "Answer:".'


@dataclass(frozen=True)
class Template:
    """A prompt template: the user message, with ``{question}`` in it, and a system message if there is one.

    ``extractor`` names the extractor, of ``apportion.answers.EXTRACTORS``, for the answers that the template asks for.
    """

    name: str
    user: str
    extractor: str = "auto"
    system: str | None = None

    def __post_init__(self) -> None:
        if "{question}" not in self.user:
            raise ValueError(
                f"template must contain {{question}}, got {shown(self.user)}; put it where the question goes"
            )
        if self.extractor not in EXTRACTORS:
            raise ValueError(
                f"extractor must be known, got {shown(self.extractor)}; {choices(self.extractor, EXTRACTORS)}"
            )

    def messages(self, question: Question) -> list[dict[str, str]]:
        """Return the conversation that asks ``question``, a text, for a model with a chat template.

        >>> TEMPLATES["plain"].messages(Question("", "1 + 1?"))
        [{'role': 'user', 'content': '1 + 1?'}]
        """
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": self.user.replace("{question}", question.text)}]

    def text(self, question: Question) -> str:
        r"""Return the conversation as one text, for a base model: the messages with an empty line between them.

        >>> TEMPLATES["boxed"].text(Question("", "1 + 1?"))
        '1 + 1?\n\nPlease reason step by step, and put your final answer within \\boxed{}.'
        """
        return "\n\n".join(message["content"] for message in self.messages(question))


def make_template(template: str) -> Template:
    """Return the template with this name, or a template of this text, whose answers are read by "auto".

    Raises ValueError for an unknown name and for a text without ``{question}``.

    >>> make_template("plain").user, make_template("Q: {question} A:").extractor
    ('{question}', 'auto')
    >>> make_template("boxd")
    Traceback (most recent call last):
    ValueError: template must be a name or a text with {question}, got 'boxd'; did you mean 'boxed'? There are ...
    """
    if template in TEMPLATES:
        return TEMPLATES[template]
    if "{question}" not in template:
        remedy = choices(template, TEMPLATES)
        raise ValueError(f"template must be a name or a text with {{question}}, got {shown(template)}; {remedy}")
    return Template("own", template)


ANSWER = Template("answer", f"{STEPS}\n\n{{question}}\n\n{REMINDER}", "answer_line")
"""DAPO's template. Its data set is published in it."""

ANSWER_EXAMPLE = Template(
    "answer_example",
    f"{STEPS} Do not wrap $Answer with \\boxed{{}}.\n\n"
    "current question: {question}\n\n"
    "Below is an example for format reference.\n"
    "Example question 1: Solve for x: 3x - 5 = 16.\n\n"
    "Response:\nAdd 5 to both sides: 3x = 21.\nDivide both sides by 3: x = 7.\nAnswer: 7\n\n"
    f"Solve the current question. {REMINDER}",
    "answer_line",
)
"""VIP's template for mathematics: DAPO's with an example. Note: the paper announces two examples and prints one."""

TOOLS = Template(
    "tools",
    "{question}",
    "boxed",
    system="In this environment you have access to a set of tools you can use to assist with the user query. You may "
    "perform multiple rounds of function calls. In each round, you can call one or more functions.\n\n"
    "In your response, first think about the reasoning process, then call functions to get information or perform "
    "actions if needed. The reasoning process and function calling are enclosed within <think> </think> and "
    "<tool_call> </tool_call> tags. The results of the function calls will be given back to you after execution, and "
    "you can continue to call functions until you get the final answer. Finally, if you have got the answer, enclose "
    "it within \\boxed{} with latex format and do not continue to call functions.\n\n"
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> "
    'XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
)
"""VIP's template for tools. Note: the paper lists the functions in it; here the model's chat template adds them."""

CHOICE = Template(
    "choice",
    "Answer the following multiple choice question. The last line of your response should be of the form "
    "Answer: $LETTER (without quotes) where $LETTER is the letter of the right option. Think step by step before "
    "answering.\n\n{question}",
    "choice",
)
"""The template for questions that end with lettered options, such as GPQA's."""

TEMPLATES = {
    template.name: template
    for template in (
        ANSWER,
        ANSWER_EXAMPLE,
        Template("boxed", TEMPLATE, "boxed"),
        TOOLS,
        CHOICE,
        Template("plain", "{question}"),
    )
}
"""Every template by name. Add new ones here."""
