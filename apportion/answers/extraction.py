r"""Extractors: read the answer that a completion states, or None if it states none.

"auto" takes a box or a statement and never guesses. A guess, such as the last number, would count derivations that were
cut off as votes for an intermediate result, often the same one in many samples. ``last_number`` must be asked for.

A statement is "Answer: X", "The answer is X", a heading "Final answer" above X, "#### X", ``<answer>X</answer>``, or
"answer" in JSON; and "Answer" in Chinese, Japanese, Korean, French, Spanish, Portuguese, Italian, German and Russian.
Models go on talking after it. So the last statement that yields a number, a letter or LaTeX is the answer. Words are
the answer only if no statement before them yields one, or if a label and not prose states them.

Only the text after the reasoning counts, whatever the tags are called. If the reasoning was not closed, there is no
answer. A box that was not closed holds none either.

Answers come without surrounding white space, ``$``, ``\( \)``, quotes, emphasis or final punctuation. More than 2,000
characters are not an answer. Time is linear in the length of the text.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator

Extractor = Callable[[str], str | None]

LONGEST = 2000
"""Maximum number of characters of an answer."""
MOST = 100
"""Boxes and statements that are examined, from the end of a text."""
TAIL = 200_000
"""How many characters at the end of a text are searched for an answer."""

_BAR, _OF = "[|｜]?", "[_▁ ](?:of[_▁])?"
TAG = re.compile(
    rf"(?=[<\[◁][^<]|[ah])(?:[<\[◁]{_BAR}(?P<close>/|end{_OF})?(?:(?:begin|start){_OF})?(?:[a-z]+:)?"
    rf"(?P<name>think(?:ing)?|thoughts?|reason(?:ing)?){_BAR}[>\]▷]"
    r"|<(?P<shut>/)?(?:\w{1,16}_)?(?P<kind>reflection|scratchpad|analysis|monologue|thoughts)>"
    r"|(?P<open><\|channel\|>\s?(?:analysis|commentary)|<\|channel>|<unused94>|<\|inner_prefix\|>"
    r"|\Aanalysis(?=[A-Z])|\Ahere(?:'s| is) my thought process:)"
    r"|(?P<final><\|channel\|>\s?final[^<]{0,20}(?:<\|constrain\|>\w{1,9})?<\|message\|>|<channel\|>|<unused95>"
    r"|<\|inner_suffix\|>|assistantfinal|^here(?:'s| is) my response:))",
    re.IGNORECASE | re.MULTILINE,
)
"""What opens and closes reasoning: tags as in <think>, [THINK], ◁think▷, <seed:think>, <|START_THINKING|>, the channels
of gpt-oss, also without their tokens, and of Gemma, and the phrases of Granite."""
END = re.compile(
    r"<[|｜](?:im_end|end_?of_?text|eot_id|eom_id|end[_▁]of[_▁](?:turn|sentence)|return|call)[|｜]>"
    r"|</s>|<eos>|<end_of_turn>|<turn\|>|\[/INST\]",
    re.IGNORECASE,
)
"""Tokens that end a completion. What follows them is of another turn."""
TOKEN = re.compile(
    r"<[|｜](?!(?:begin|end)_of_box)\w[\w▁/]+[|｜]>|<s>|<start_of_turn>|\[INST\]|</?(?:final|output|response)>"
)
"""Other tokens of a chat template, and tags around a whole answer."""

BOX = re.compile(
    r"(?:\\(?:[bB]oxed|fbox|framebox|ovalbox|tcbox|bbox|f?colorbox\{[^{}\n]{1,40}\}(?:\{[^{}\n]{1,40}\}(?=\s?\{))?)"
    r"(?![A-Za-z])(?:\[[^\]\n]{0,40}\](?=[\[{]))*|\x08oxed(?=\{)|(?<![A-Za-z\\])boxed(?=\{))\s?"
)
"""A box by any of its names, also where JSON has read its backslash as a control character, or dropped it."""
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace belongs to the answer
BETWEEN_BOXES = re.compile(r"[\s$,;&]*+(?:\\text\{)?\s*+(?:and|or)?\s*+\}?[\s$]*+(?:\\(?:q?quad|[,;])\s*+)*+")

_TONGUES = (
    r"(?:la\ )?(?:r[ée]ponse|respuesta|risposta)(?:\ final[e]?)?|(?:a\ )?resposta(?:\ final)?|(?:die\ )?antwort|ответ"
)
STATEMENT = re.compile(
    r"(?=[alrdо])(?:"  # most characters begin no alternative, and fail at once
    r"(?P<prose>\banswers?\b[*_]{0,3}(?:\s(?:to|of|for)\s[^.:\n]{1,60}?)?\s(?:is|are|(?:would|must|will|should)\ be)\b"
    r"(?:\s(?:therefore|simply|then|thus|indeed|hence|just|exactly)\b)?"
    rf"|(?<!\w)(?:{_TONGUES})\s(?:est|es|è|é|ist|lautet)(?!\w))"
    rf"|(?P<label>(?:\banswers?\b|(?<!\w)(?:{_TONGUES}))[*_]{{0,3}}\s?[:=：]))"
    r"|(?:(?:答案|答え|정답|답)[*_]{0,3}\s?(?:(?:应该|应当|应)?[是为]|[:：は은])\s?)"
    r"|^(?:(?P<heading>[#*_>\ ]{0,8}(?:the\ )?(?:final\ )?answer[*_\ ]{0,4}$)"
    r"|(?P<hashes>\#{4}(?!\#)(?!\ *+(?:\d+[.)]\ |[^\n]*:))))"  # other lines with #### are headings
    r"|(?P<tag><(?:(?:final_)?answer>|\|begin_of_box\|>))"
    r"|(?P<json>[\"'](?:final[_\ ]?)?answer[\"']\s{0,4}:)",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
QUOTES = ('"', "“", "”", "'", "`")
TALK = re.compile(r"(?:this|that|these|an?|any|no|your|each|whose|if|whether|other|and the)\s+$", re.IGNORECASE)
"""Words before "answer is" that only talk about an answer, and do not state one."""
REPEATED = re.compile(r"\W*(?:the )?(?:final |correct )?answers? (?:is|are)\b", re.IGNORECASE)
PLAN = re.compile(
    r"\W*(?:let(?:'s|’s| us| me)\s"
    r"(?:think|solve|start|begin|first|break|work|see|consider|analy|find|calc|comp|go|denote|look)"
    r"|(?:we|i)\s(?:need|can|have to|know|must|will|should|are (?:given|told))\b|first,?\s(?:we|i|let)\b"
    r"|to (?:find|solve|determine|calculate|answer)\b)",
    re.IGNORECASE,
)
"""How reasoning begins right after the label that a prompt asked for, as in "Answer: Let's think step by step."."""
LABEL_BEFORE = re.compile(r"answer[*_]*\s?[:=]\W*(?:the )?(?:final |correct )?$", re.IGNORECASE)
SENTENCE_END = re.compile(r"(?<![A-Z]\. [A-Z])[.](?=[\s*]|$)(?! [A-Z]\. )|(?<!\\)[!?](?=[\s*\"'”]|$)|[。！]")
ABBREVIATED = re.compile(r"(?:(?<![^\W\d_])[^\W\d_]{2,4}|\bapprox|\.[A-Za-z])$")
"""A short word that may be an abbreviation: its point is one if a number or a small letter follows."""
GOES_ON = re.compile(r"[.]\s+[(]?(?:\d|[a-z](?!\w*(?:\s(?:is|are|was)|n't)\b))")
TITLE = re.compile(r"\b(?:St|Dr|Mrs?|Ms|Mt|Ft|Prof|Sgt|Capt|Gen|Col|Lt|Rev|Sen|Rs|approx|vs)$")
"""Abbreviations that never end a sentence."""
CLAUSE = re.compile(
    r"(?<!\s),?\s++"
    r"(?:since|because|as|which|so|where|but|not|given|i\.e\.|that is|and (?:this|the|it|we|so|not)|if|when)\b",
    re.IGNORECASE,
)
DEFINITE = re.compile(
    r"[-+−–±~≈<>≤≥=\s([{|$£€¥₹√*\"'“]*(?:\\[$%A-Za-z({[]|\d|\.\d|[½⅓⅔¼¾⅕⅛π∞∅ℝ]|[A-Za-z]\s*(?:=|\\in)"
    r"|\(?[A-Za-z]\)?(?=[\s\"'”*]*(?:[.,:;)\]!]|$)))"
)
"""The beginning of an answer that is a number, a letter or LaTeX."""
BOLD = re.compile(r"(?<![\w*])\*\*([^*]+)\*\*(?![\w*])")
DELIMITERS = re.compile(r"\\\$|\$|(?<!\\)\\[()\[\]]")
BEFORE_SIGNS = re.compile("(?s:.*[^\\s∎■□\u2600-\u27bf\ufe0f\U0001f300-\U0001faff])")
"""Matches a text up to the emoji or end-of-proof signs at its end."""
VALUE = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|(?!null\b)([-\w.]+|\[[^\[\]{}]*\]))""")
ESCAPED = re.compile(r'\\(?:u([0-9A-Fa-f]{4})|([\\"/]))')
"""Escapes of JSON that are decoded. Other backslashes stay, because models write LaTeX with a single one."""
PLACEHOLDER = re.compile(r"[?_….\s]*|[\[<(]?(?:(?:your|the|final|insert|put) )*answer(?: here)?[\])>]?", re.IGNORECASE)
"""What an instruction writes in place of the answer, such as "..."."""
INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff\u00ad]")

CHOICE_STATEMENT = re.compile(
    rf"{STATEMENT.pattern}|(?P<option>\b(?:option|choice)\b[*_]{{0,3}}\s?(?:is\b|[:=])"
    r"|选(?:(?:(?<=[故应该案题确的以此我]选)|(?<![一-鿿]选))(?:项|择)?"
    r"|项(?=\s?[（(]?[A-J][）)]?\s?[是为]?(?:正确|对的|符合)))[是为：:\s]{0,3}"
    r"|正确的(?:选?项)?[是为]|(?<![A-Za-z])(?=[A-J]\s?选?项?\s?[是为]?(?:正确|对的|符合)))",
    STATEMENT.flags,
)
FONT = re.compile(r"\\(?:text|math|boldsymbol|bf|rm)[a-z]*|[{}*_`\"'“”<>]")
LETTER = re.compile(
    r"(?:option |choice |letter |选项)?[(\[（]?(?P<alone>[A-J])[)\]]?(?:[.:!]?$|(?P<labelled>"
    r"[)\].:](?:[\s\\]|$)(?!\s*(?:and|or|&|/)\s)|[）。]|，(?!\s*[A-J])|\s?选?项?\s?[是为]?(?:正确|对的|符合)|\s*\(|\s+[-–—]\s|…|,\s+(?![(\[]?(?:[A-J]|and|or)\b)"
    r"|,?\s+(?:because|since|which|as|(?:and |but )?not)\b))",
    re.IGNORECASE,
)
OPTION = re.compile(r"\(?(?P<letter>[A-Ja-j])(?:\)|(?<![Ii])[.]|(?<![AaIi]):)\s+(?![A-Za-z]\.)\S.*")
"""A reply that is only a letter and the text of its option."""
BOLD_LETTER_AT_END = re.compile(r"(?:.*\s)?\*\*\(?(?P<letter>[A-J])\)?\.?\*\*\.?", re.IGNORECASE)

NUMBER = re.compile(
    r"(?<![A-Za-z_\d.])(?:(?<![)\]}])(?P<sign>[-+−]))?"  # after a bracket the sign is an operator
    r"(?:\\[dt]?frac\{(?P<over>\d+)\}\{(?P<under>\d+)\}"
    r"|(?P<number>(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+|/\d+)?))",
    re.ASCII,
)


def after_reasoning(text: str) -> str | None:
    """Return what ``text`` says after its reasoning, all of it if it holds none; None if the reasoning was not closed.

    >>> after_reasoning("[THINK]Is it 3?[/THINK]It is 4."), after_reasoning("<think>Is it 3?")
    ('It is 4.', None)
    """
    opened, end = list[str](), 0
    for tag in TAG.finditer(text):
        name = (tag["name"] or tag["kind"] or "").lower()
        if tag["open"] or (name and not (tag["close"] or tag["shut"])):
            opened.append(name)
            continue
        # a tag that was not opened here was opened by the prompt
        opened = opened[: opened.index(name)] if name in opened else []
        end = end if opened else tag.end()
    return None if opened else text[end:].rstrip()


def ends_reasoning(text: str) -> bool:
    """Return whether ``text`` closes its reasoning, and opens none after it."""
    return TAG.search(text) is not None and after_reasoning(text) is not None


def _after_reasoning(extractor: Extractor) -> Extractor:
    """Restrict ``extractor`` to the text after the reasoning."""

    def extract_after_reasoning(text: str) -> str | None:
        said = after_reasoning(INVISIBLE.sub("", text))
        turns = [] if said is None else END.split(said)
        return extractor(TOKEN.sub("\n", next(filter(str.strip, turns), "")).rstrip())

    return extract_after_reasoning


def boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}`` or ``\fbox{...}``; None if its braces do not close.

    Boxes that stand together are one answer.

    >>> boxed(r"First \boxed{7}, or rather \boxed{\frac{1}{2}}."), boxed(r"$\boxed{-1}$ and $\boxed{1}$")
    ('\\frac{1}{2}', '-1, 1')
    """
    together: list[str] = []
    after = None
    for box in _from_the_end(BOX, text):
        found = _content(text, box.end())
        if found is None:
            break
        if not found[0]:  # a box without content repeats the instruction
            continue
        if after is not None and not BETWEEN_BOXES.fullmatch(text, found[1], after):
            break
        if found[0] not in together:
            together.insert(0, found[0])
        after = box.start()
    return ", ".join(together) or None


def answer_line(text: str) -> str | None:
    r"""Return the X of the last statement that yields a number, a letter or LaTeX, else of the last in words.

    X ends with its sentence or line. It may stand on the line below if nothing follows it.

    >>> answer_line("**Answer:** $42$."), answer_line("So the answer is 3.5 km. I hope this answer is helpful!")
    ('42', '3.5 km')
    >>> answer_line("She has 9 + 9 eggs left.\n#### 18"), answer_line('{"answer": "Paris"}')
    ('18', 'Paris')
    """
    words = None
    for statement, only_words in _statements(text, STATEMENT):
        if not only_words:
            return statement
        words = words or statement
    return words


def choice(text: str) -> str | None:
    r"""Return the chosen letter, A to J in upper case: boxed, stated, or alone or last in bold on the last line.

    The text of the option may follow a boxed or stated letter, and one that begins a reply of one
    line. A word is not a letter: "A dog" and "I think so" choose none.

    >>> choice(r"\boxed{\text{B}}"), choice("The answer is (c) Paris."), choice("The answer is A dog.")
    ('B', 'C', None)
    """
    stated = next(filter(None, (_letter(said) for said, _ in _statements(text, CHOICE_STATEMENT))), None)
    box, last_line = boxed(text), text.rpartition("\n")[2].strip()
    letter = (box and _letter(box)) or stated or _letter(last_line, alone=True)
    if letter is None and last_line.endswith(("**", "**.")):
        bold = BOLD_LETTER_AT_END.fullmatch(last_line)
        letter = bold and bold["letter"]
    if letter is None and (option := OPTION.fullmatch(text.strip())):
        letter = option["letter"]
    return letter.upper() if letter else None


def last_number(text: str) -> str | None:
    r"""Return the last number with its sign, decimals and "/", without thousands separators; ``\frac{a}{b}`` is a/b.

    >>> last_number("12 - 5 = 7, so she pays $1,250.50."), last_number("x = -3/4")
    ('1250.50', '-3/4')
    """
    end = max(text.rfind(digit) for digit in "0123456789") + 2  # a fraction ends in a brace after its last digit
    found = None
    for found in NUMBER.finditer(text[max(0, end - LONGEST) : end]):  # noqa: B007 - only the last is wanted
        pass
    if found is None:
        return None
    digits = found["number"].replace(",", "") if found["number"] else f"{found['over']}/{found['under']}"
    return digits if found["sign"] in (None, "+") else f"-{digits}"


def auto(text: str) -> str | None:
    """Return the answer of ``boxed``, else of ``answer_line``, else None.

    >>> auto("Then 6 x 7 = 42") is None
    True
    """
    return boxed(text) or answer_line(text)


EXTRACTORS: dict[str, Extractor] = {
    extractor.__name__: _after_reasoning(extractor) for extractor in (auto, boxed, answer_line, choice, last_number)
}
"""Every extractor by name."""


def extract(text: str, how: str = "auto") -> str | None:
    r"""Return the answer that ``text`` states, read by the extractor ``how``; None if it states none.

    Raises ValueError for an unknown extractor.

    >>> extract("<think>Is it \\boxed{3}?</think>It is \\boxed{4}."), extract("<think>Is it \\boxed{3}?")
    ('4', None)
    >>> extract("4", how="vote")
    Traceback (most recent call last):
    ValueError: how must be one of auto, boxed, answer_line, choice, last_number, got 'vote'
    """
    if how not in EXTRACTORS:
        raise ValueError(f"how must be one of {', '.join(EXTRACTORS)}, got {how!r}")
    return EXTRACTORS[how](text)


def _from_the_end(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the last matches, at most ``MOST``, the last one first."""
    return reversed(deque(pattern.finditer(text, max(0, len(text) - TAIL)), MOST))


def _content(text: str, start: int) -> tuple[str, int] | None:
    """Return the content of the box whose braces open at ``start``, and its end; None if they do not close."""
    rest = text[start : start + LONGEST]
    if not rest.startswith("{"):
        word = re.split(r"[\s$]", rest, maxsplit=1)[0]
        return (_tidy(word) or "", start + len(word)) if len(word) < LONGEST else None
    depth = 0
    for brace in BRACE.finditer(rest):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return _tidy(rest[1 : brace.start()]) or "", start + brace.end()
    return None


def _statements(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, bool]]:
    """Yield the text of each statement of an answer, the last one first, and whether it is prose without a value."""
    for found in _from_the_end(pattern, text):
        prose, before = found.lastgroup in ("prose", "option"), text[max(0, found.start() - 30) : found.start()]
        if before.endswith(QUOTES) and text.startswith(QUOTES, found.end()):
            return  # an instruction that is repeated, and what stands before it may be its example
        if prose and TALK.search(before):
            continue
        said = _said(text, found.end(), found.lastgroup)
        if (
            said is None or PLAN.match(said) or (not prose and REPEATED.match(said))
        ):  # "Final answer: The answer is X" states X once
            continue
        definite = said.startswith("$") or DEFINITE.match(said) is not None
        clause = CLAUSE.search(said) if definite else None
        if stated := _tidy(said[: clause.start()] if clause else said):
            yield stated, prose and not definite and not LABEL_BEFORE.search(before)


def _said(text: str, start: int, kind: str | None) -> str | None:
    """Return the text from ``start`` to the end of its sentence or line; under a heading, the last line below it."""
    rest, goes_on = text[start : start + LONGEST], len(text) > start + LONGEST
    if kind == "json":
        value = VALUE.match(rest)
        return value and ESCAPED.sub(
            lambda found: found[2] or chr(int(found[1], 16)), value[1] or value[2] or value[3] or ""
        )
    if kind == "tag":
        content, *closed = re.split(r"</|<\|end", rest, maxsplit=1)
        return content if closed else None
    line, newline, below = rest.lstrip(":=：*_").partition("\n")
    if not line.strip():
        line = re.sub(r"^[-*•]\s+", "", below.strip())  # an entry of a list
        display = (line[:2], line[-2:]) in (("$$", "$$"), ("\\[", "\\]"))
        if goes_on or ("\n" in line and not display):
            return None
    box, end = BOX.search(line), _sentence_end(line)
    if box and (end is None or box.start() < end.start()):
        return boxed(line)
    if end is None and goes_on and not newline:
        return None
    return BOLD.sub(r"\1", line[: end.start()] if end else line).strip()


def _sentence_end(line: str) -> re.Match[str] | None:
    """Return the first end of a sentence. The point of an abbreviation ends none, unless another sentence follows."""
    for end in SENTENCE_END.finditer(line):
        before = line[max(0, end.start() - 8) : end.start()]
        goes_on = ABBREVIATED.search(before) and GOES_ON.match(line, end.start()) and not CLAUSE.match(line, end.end())
        if end[0] != "." or not (goes_on or (TITLE.search(before) and line[end.end() :].strip())):
            return end
    return None


def _tidy(answer: str) -> str | None:
    """Return ``answer`` without ``$`` and without surrounding space, emphasis and punctuation; None if it is empty."""
    tidy = " ".join(DELIMITERS.sub("", answer).split()).lstrip(':;*`"“ ').rstrip('.,:;*`"”。\\ ')
    tidy = signed[0] if (signed := BEFORE_SIGNS.match(tidy)) else tidy
    tidy = re.sub(r"(?:です|である|입니다|이다)$", "", tidy)
    tidy = tidy.strip("_") if tidy[:1] == tidy[-1:] == "_" else tidy
    return None if PLACEHOLDER.fullmatch(tidy) else tidy


def _letter(statement: str, alone: bool = False) -> str | None:
    """Return the letter at the beginning of the statement if only the text of its option, or nothing, follows.

    With ``alone`` nothing may follow it.
    """
    found = LETTER.match(FONT.sub("", statement).strip())
    return found["alone"] if found and not (alone and found["labelled"]) else None
