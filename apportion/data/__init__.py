"""Questions for a training job: data sets and prompt templates, by name.

``Data`` says which questions a job takes and how it asks them. ``load`` reads them from a file or the Hugging Face hub,
takes a question from each row (``layouts``), then merges, shuffles and cuts them. The chosen template turns each
question into a prompt, and ``make_verifier`` gives the verifier.

>>> from apportion.questions import Question
>>> data = Data(name="math500", limit=100, seed=0)  # ``load_questions(data)`` reads it from the hub
>>> question = Question("", "What is 2 + 2?", "4")
>>> data.chosen_template.messages(question)[0]["content"]
'What is 2 + 2?\\n\\nPlease reason step by step, and put your final answer within \\\\boxed{}.'
>>> with data.make_verifier() as verifier:
...     verifier.check([question])
...     verifier.verdict("It is \\\\boxed{4}.", question.gold)
1.0
"""

from apportion.data.loading import Loaded, describe, load, load_questions
from apportion.data.named import NAMED, NamedSet
from apportion.data.source import Data
from apportion.data.templates import TEMPLATES, Template, make_template

__all__ = [
    "NAMED",
    "TEMPLATES",
    "Data",
    "Loaded",
    "NamedSet",
    "Template",
    "describe",
    "load",
    "load_questions",
    "make_template",
]
