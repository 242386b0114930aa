r"""What stands around a number: its unit, its currency, its percent sign, its base.

"18 dollars", "$18" and "18" are one answer, and 5 cm is 5, because a question usually asks for one unit. But 5 cm is
not 5 m, and a unit is a product of powers: 5 m is neither 5 m/s nor 5 m^2. Words that change the value, as in "18 or
more" or "2 thirds", are no unit.
"""

import re
from collections import Counter

UNITS = """
mm 毫米;cm 厘米;m meter metre 米;km 千米 公里;in inch inches;ft foot feet
yd yard;mi mile;mg;g gram 克;kg 千克 公斤;oz ounce;lb pound £ gbp;t ton tonne;ml 毫升
l liter litre 升;gal gallon;ms;s sec second 秒;min minute 分钟;h hr hour 小时;day 天;night
week;fortnight;month;yr year 年 岁
cup;pint;quart;tablespoon tbsp;teaspoon tsp;knot;psi;bar;parsec;nickel;dime
dollar usd buck us$ $;cent ¢;euro eur €;pence penny pennie;¥ yen yuan 元 cny jpy rmb;₹ rs rupee inr;₩ krw;₱ peso
₽ ruble rouble;franc chf;cad;aud;nzd;hkd;sgd;btc;degree deg 度;radian rad
c celsius;f fahrenheit;k kelvin;Hz hz hertz;J j joule;W w watt;kW kw;V v volt;N n newton;A ampere amp;ohm;Pa pascal
B byte;bit;cal calorie;mol mole;mi/h mph;km/h kph kmh;acre;hectare;rpm;ppm;pt point;pc piece;decade;century centurie
"""
KINDS = """
boy male men;girl female women;odd;even;full;empty;inside;outside;red;blue;green;black;white
left;right;north;south;east;west;increase gain profit win;decrease loss
clockwise;counterclockwise;up upward;down downward;above;below;forward;backward;before earlier early ago
after late later;ahead;behind;older;younger;faster;slower;longer taller;shorter
"""
"""Words for the kind or the direction of a number, such as "boy" or "north". An answer may leave them out."""
PREFIXED = """
meter metre gram liter litre second joule watt volt newton hertz pascal byte bit calorie mole ohm amp ampere
"""
PREFIXES = {"nano": "n", "micro": "u", "milli": "m", "centi": "c", "kilo": "k", "mega": "M", "giga": "G", "tera": "T"}
NAMES = {name: names.split()[0] for names in re.split(r"[;\n]", UNITS + KINDS) if names for name in names.split()}
NAMES |= {f"{long}{name}": short + NAMES[name] for long, short in PREFIXES.items() for name in PREFIXED.split()}
"""The first name of every measure, by each of its names in the singular. Two answers with different ones differ."""
OF_KIND = frozenset(NAMES[name] for name in re.findall(r"\w+", KINDS))
SI = re.compile(r"[kMGTcmnpdh]?(?:mol|Hz|Pa|eV|Wh|cal|bit|bar|atm|[BJWVNAFTKLlgms])")
"""Measures whose case has a meaning, each by its own name: MW is not mW."""
VARIABLES = re.compile(r"[aA]?[^aeiouAEIOU\W\d]+")
"""A run of letters without vowels is a product, as in 2xy or abc. Every other one is a word."""
LETTERS = frozenset("mgshlnjwvkcft")
"""Measures of one letter. They need white space before them, because 5m may be a product."""
FRACTIONS = "third|quarter|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth"
NO_UNIT = re.compile(
    r"or|and|to|times|plus|minus|over|by|mod|modulo|remainder|base|zero|more|less|fewer|greater|least|most|than|between|if|for"
    rf"|when|where|not|no|none|except|without|half|halves|(?:{FRACTIONS})s?|mille|squared|cubed|pi|root|factorial|choose"
    r"|negative|positive|into|through|then|with|because|is|are|was|[mbtr]+illion|thousand|hundred|lakh|crore|dozen"
    r"|percent(?:age)?|pct|am|pm|oclock|noon|midnight|bce?|ad|ce"
)
"""Words that change the value of the number before them."""
SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
SCALES |= {"lakh": 10**5, "crore": 10**7, "dozen": 12}

WORD = r"[A-Za-z]+(?:'[a-z]+)?"
POWER = r"(?:\s?\^\s?\{?\s?-?[123]\s?\}?)?"
BY = r"(?:\s?/\s?\(?|\s?\\cdot\s?|\s?\*\s?|\s?-\s?|\s)"
PHRASE = rf"{WORD}\.?{POWER}(?:{BY}{WORD}\.?{POWER}\)?)*"
PART = rf"(?:{WORD}\.?|\\text\{{\s*{PHRASE}\s*\}}){POWER}"
UNIT = rf"{PART}(?:(?:{BY}|(?=\\text)){PART}\)?)*"
RATIO = re.compile(rf"\s*\\frac\{{({UNIT})\}}\{{((?=\\text|[A-Za-z]{{2}}|[sh]\b){UNIT})\}}$")
"""A fraction of units. One over a single letter is a unit only if that is s or h; all others are of variables."""
FACTOR = re.compile(
    rf"(?P<over>/|\bper\b)|\\cdot|\bdegrees?\s+(?=[CcFf])|(?P<power>\b(?:sq|square|cu|cubic)\b)"
    rf"|(?P<word>{WORD})(?:[\s}}]*\^[\s{{]*(?P<to>-?\d))?|(?P<sign>\\?\$|[£€¥₹₩₱₽¢])"
)
CHINESE = re.compile(
    r"(?<=[\d}])\s*(?:(?P<square>平方)|(?P<cubic>立方))?(?P<name>千米|公里|厘米|毫米|米|小时|分钟|秒|天|年|岁|千克|公斤|克|毫升|升|元|度"
    r"|[个只人本块名条件次种])$"
)
"""A unit in Chinese, or a word that counts things."""
TRAILING = re.compile(
    rf"(?P<head>.*?(?:[\d)}}\]!%]|\w(?=\s*\\text)))(?P<gap>\s*(?:/\s?(?=[A-Za-z]{{3}}))?)(?P<unit>{UNIT})", re.DOTALL
)
CURRENCY = re.compile(
    r"(?P<sign>[-+]?)\s*(?:US|USD|Rs\.?|EUR|GBP)?\s*(?P<name>\\?\$|[£€¥₹₩₱₽]|USD|US|Rs\.?|EUR|GBP|INR|CNY|RMB|JPY|CAD|AUD)\s*(?=[-\d.])"
)
SCALE = re.compile(
    rf"(?P<head>[-+]?\d[\d,]*(?:\.\d+)?)\s*(?:\\text\{{\s*)?(?P<scale>{'|'.join(SCALES)})s?\b\s*(?P<rest>[^}}]*)\}}?"
)
PERCENT = re.compile(
    r"(?P<head>.*[^\s\\])\s*(?:\\?%|\b(?:percent|pct|percentage(?: points?)?)|\\text\{\s*(?:percent|pct)\s*\})"
)
BASED = re.compile(r"(?P<head>[\dA-F]+)_\{?(?P<base>\d{1,2})\}?")
CLOCK = re.compile(r"(?P<hour>\d{1,2})(?::(?P<minute>[0-5]\d))?\s*(?:(?P<half>[ap])\.?\s?m\b\.?)?", re.IGNORECASE)
SUM = re.compile(r"(?:\d+(?:\.\d+)?\s?[a-z]+\.?(?:,|\s?\band\b|\s|$)?\s?){2,}", re.IGNORECASE)
MONEY = re.compile(r"(?<=\d)\s*(?P<name>\\?\$|[£€¥₹₩₱₽¢])$")
ORDINAL = re.compile(r"(?<=\d)(?:\^\{?)?\s?(?:\\text\{)?(?:st|nd|rd|th)\}*$")
ABOUT = re.compile(
    r"\s*(?:\\(?:approx|simeq|sim)(?![A-Za-z])"
    r"|(?i:~|about|approx(?:imately|\.)?|roughly|around|exactly|only|just|nearly)\s*(?=[-+\\$\d.(]))"
)


Measures = frozenset[tuple[str, int]]
"""The units of an answer with their powers. Words for the kind of thing that is counted have the power 0."""


def without_unit(text: str) -> tuple[str, Measures]:
    r"""Return ``text`` without its unit or currency, and the ``Measures`` that were removed.

    >>> without_unit("18 dollars"), without_unit(r"\$18"), without_unit("5 m/s^2")[0]
    (('18', frozenset({('dollar', 1)})), ('18', frozenset({('dollar', 1)})), '5')
    >>> sorted(without_unit("5 m/s^2")[1]), without_unit("18 or more"), without_unit("3 x")
    ([('m', 1), ('s', -2)], ('18 or more', frozenset()), ('3 x', frozenset()))
    """
    text, unit = ORDINAL.sub("", text[about.end() :] if (about := ABOUT.match(text)) else text).strip(), ""
    text = CHINESE.sub(_translated, text)
    if money := CURRENCY.match(text):
        unit = money["name"].rstrip(".")
        text = money["sign"] + text[money.end() :]
    if money := MONEY.search(text):
        unit = money["name"]
        text = text[: money.start()]
    if based := BASED.fullmatch(text):
        return based["head"], frozenset({(f"base {based['base']}", 1)})
    if "^" in text and not re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", text) and r"^\circ" in text:
        kind = re.fullmatch(r"(.*)\^\\circ\s*([CF]?)", text)
        unit = f"{unit} {kind[2].lower() or 'degree' if kind else 'degree'}"
        text = kind[1] if kind else text.replace(r"^\circ", "")
    if found := TRAILING.fullmatch(RATIO.sub(r" \1/(\2)", text)):
        written = found["unit"].replace(r"\text", "").replace("'", "")
        words = re.findall(WORD, written)
        plain = _is_unit(words, found["gap"]) and not _is_formula(found["gap"] + found["unit"])
        if (plain or r"\text" in found["unit"]) and not any(NO_UNIT.fullmatch(word.lower()) for word in words):
            unit += f" {found['gap']}{written}"
            text = found["head"].strip()
    return text, _powers(unit)


def _translated(found: re.Match[str]) -> str:
    """Return a Chinese unit in English; nothing for a word that counts things."""
    power = "square " if found["square"] else "cubic " if found["cubic"] else ""
    return f" {power}{NAMES.get(found['name'], '')}".rstrip()


def _powers(unit: str) -> Measures:
    """Return the power of each known measure in a product such as "kg m/s^2", in words or signs."""
    powers, sign, next_power = Counter[str](), 1, 1
    for part in FACTOR.finditer(unit):
        if part["over"]:
            sign = -1
        elif part["power"]:
            next_power = 2 if part["power"].startswith("s") else 3
        elif name := _measure((part["word"] or part["sign"] or "").strip("\\")):
            for place, each in enumerate(name.split("/")):
                power = int(part["to"] or next_power) * (-sign if place else sign)
                powers[each] += 0 if each in OF_KIND else power
            next_power = 1
    return frozenset(powers.items())


def _is_unit(words: list[str], gap: str) -> bool:
    """Return whether plain ``words`` after a number and a ``gap`` are a unit, and no product of variables."""
    apart = gap.isspace() or ("/" in gap and _measure(words[0]) is not None)
    if len(words) == 1 and len(words[0]) == 1:
        return apart and words[0].lower() in LETTERS
    products = [word for word in words if not _measure(word) and (len(word) == 1 or VARIABLES.fullmatch(word))]
    return (apart and not products) or words[0].lower() in NAMES


def _is_formula(unit: str) -> bool:
    """Return whether a product by * may be one of variables: letters, and no white space or no power below 0."""
    letters = "*" in unit and all(len(word) == 1 for word in re.findall(WORD, unit))
    return letters and not (unit[0].isspace() and re.search(r"\^[\s{]*-", unit))


def _measure(word: str) -> str | None:
    """Return the first name of the measure that ``word`` names, in the singular or plural; None if it is another."""
    name = word.lower()
    if known := NAMES.get(name) or SI.fullmatch(word):
        return known if isinstance(known, str) else word
    return NAMES.get(name.removesuffix("s")) or NAMES.get(name.removesuffix("es"))


def summed(text: str) -> str | None:
    """Return a length of time or another sum of measures in one spelling; None if ``text`` is none.

    >>> summed("3 hours and 20 minutes"), summed("3hrs. 20 min."), summed("3 apples 2 pears")
    ('3 h 20 min', '3 h 20 min', None)
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)\s?([A-Za-z]+)", text) if SUM.fullmatch(text) else []
    named = [(number, _measure(word)) for number, word in parts]
    return " ".join(f"{number} {name}" for number, name in named) if named and all(name for _, name in named) else None


def clock(text: str) -> str | None:
    """Return a time of day in one spelling; None if ``text`` is none.

    >>> clock("3 p.m."), clock("03:00 PM"), clock("3:30"), clock("3")
    ('3:00 pm', '3:00 pm', '3:30', None)
    """
    found = CLOCK.fullmatch(text)
    if found is None or not (found["minute"] or found["half"]) or int(found["hour"]) > 24:
        return None
    half = f" {found['half'].lower()}m" if found["half"] else ""
    return f"{int(found['hour'])}:{found['minute'] or '00'}{half}"
