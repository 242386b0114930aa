"""Data sets by name, most of them of the papers: their place on the Hugging Face hub, and what their columns hold.

A local file with the same columns can be used instead. Ids, configurations, splits and columns are taken from the data
cards and from public code. Nothing checks them against the hub, where they may change.

AMC is two sets: OptPO (arXiv 2512.02882) uses the 83 problems of "amc", HORA (arXiv 2605.07114) the 40 of "amc23".
"""

from dataclasses import dataclass

from apportion.data.layouts import WRONG_OPTIONS, Layout, aliases, context, conversation, options, plain


@dataclass(frozen=True)
class NamedSet:
    """A published data set: its place, the layout of its rows, and its usual template and verifier.

    ``others`` are further columns that ``layout`` reads. ``repeats`` says whether rows repeat prompts; repeated rows
    are merged. ``verifier`` and ``template`` are names.
    """

    name: str
    hub: str
    split: str
    prompt_column: str
    answer_column: str
    subset: str | None = None
    layout: Layout = plain
    others: tuple[str, ...] = ()
    repeats: bool = False
    template: str = "boxed"
    verifier: str = "math"


NAMED = {
    named.name: named
    for named in (
        # 500 problems of MATH.
        NamedSet("math500", "HuggingFaceH4/MATH-500", "test", "problem", "answer"),
        # MATH: 7,500 problems to train on; split test has 5,000, with those of math500. Subsets are subjects, such as
        # algebra. The columns are those of EleutherAI/hendrycks_math, which must be given a subset. The answer is what
        # the solution puts into its box.
        NamedSet("math", "DigitalLearningGmbH/MATH-lighteval", "train", "problem", "solution", repeats=True),
        # 30 problems.
        NamedSet("aime24", "HuggingFaceH4/aime_2024", "train", "problem", "answer"),
        # 30 problems. Licence: apache-2.0.
        NamedSet("aime25", "math-ai/aime25", "test", "problem", "answer"),
        # 83 problems of AMC 12, 2022 and 2023, some reworded to have a whole number for an answer.
        NamedSet("amc", "AI-MO/aimo-validation-amc", "train", "problem", "answer"),
        # 40 problems of AMC 12, 2023.
        NamedSet("amc23", "math-ai/amc23", "test", "question", "answer"),
        # 198 questions. Gated: accept its terms on the hub, and log in; they ask not to show examples online.
        # Licence: cc-by-4.0.
        NamedSet(
            "gpqa", "Idavidrein/gpqa", "train", "Question", "Correct Answer",
            subset="gpqa_diamond", layout=options, others=WRONG_OPTIONS, template="choice", verifier="choice",
        ),
        # The published file: 17,000 prompts in DAPO's template, each about a hundred times. Licence: apache-2.0.
        NamedSet(
            "dapo_math_17k", "BytedTsinghua-SIA/DAPO-Math-17k", "train", "prompt", "reward_model",
            layout=conversation, repeats=True, template="answer",
        ),
        # A copy with each prompt once, without the template; subset en has the English ones.
        NamedSet(
            "dapo_math_17k_processed", "open-r1/DAPO-Math-17k-Processed", "train", "prompt", "solution",
            subset="all", repeats=True, template="answer",
        ),
        # 272 problems.
        NamedSet("minerva", "math-ai/minervamath", "test", "question", "answer"),
        # 674 open-ended problems in English, without pictures. The tolerance in its column error is not used.
        # Licence: apache-2.0.
        NamedSet(
            "olympiadbench", "Hothan/OlympiadBench", "train", "question", "final_answer",
            subset="OE_TO_maths_en_COMP", layout=context, others=("context",),
        ),
        # 19,938 questions that take two to four searches, the answerable ones of MuSiQue; split validation has 2,417.
        NamedSet(
            "musique", "dgslibisey/MuSiQue", "train", "question", "answer",
            layout=aliases, others=("answer_aliases",), repeats=True, template="tools", verifier="em",
        ),
        # 125 questions that take two searches.
        NamedSet("bamboogle", "chiayewken/bamboogle", "test", "Question", "Answer", template="tools", verifier="em"),
    )
}  # fmt: skip
"""Every named set, by name. Add new ones here."""
