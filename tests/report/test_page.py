"""The page: well formed, small, quick, escaped, readable, and without anything that it loads."""

import base64
import hashlib
import json
import re
import time
from html import escape
from html.parser import HTMLParser

import numpy as np
import pytest

from apportion import VIP
from apportion.diagnosis import advice_of
from apportion.replay import replay
from apportion.report import json_of, page_of, profile_of, read_sources, report_of
from apportion.report.style import DARK, LIGHT
from apportion.selection import Mixed
from tests.report.builders import make_record, make_study, make_vote

EVIL = "<script>alert(1)</script>\u202e\x00</svg>'\"&<img src=x onerror=alert(2)>"
VOID = {"meta", "input", "br", "link", "img"}


def contrast(first, second):
    """Return the contrast ratio of two colours, from 1 to 21, as WCAG 2 defines it."""
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour):
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


class Tree(HTMLParser):
    """Reads a page; raises AssertionError if an element is not closed by its own end tag."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.open, self.found, self.text = [], [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attrs for name, attrs, _ in self.found if name == tag]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [make_study(folder / "study"), make_vote(folder / "answers.jsonl")]


@pytest.fixture(scope="module")
def report(sources):
    other = make_record(seed=1, tokens=np.full(40 * 16 * 8, np.nan), predicted=np.full(40 * 16, np.nan))
    profiles = [profile_of(make_record(), "grpo"), profile_of(other, EVIL), *read_sources(sources)]
    return report_of(profiles)


@pytest.fixture(scope="module")
def page(report):
    return page_of(report)


def test_the_page_is_well_formed_and_its_ids_are_unique(page):
    tree = Tree(page)
    ids = [attrs["id"] for _, attrs, _ in tree.found if "id" in attrs]
    assert len(ids) == len(set(ids)) > 10
    assert tree.all("html")[0]["lang"] == "en" and tree.all("title")
    for attrs in tree.all("svg"):
        assert set(attrs["aria-labelledby"].split()) <= set(ids)


def test_nothing_is_loaded_or_run(page):
    tree = Tree(page)
    assert not re.search(r"https?:|//[a-z]|@import|javascript:", page.replace("<!doctype html>", ""))
    assert not {"script", "link", "img", "iframe", "object", "form", "base"} & {tag for tag, _, _ in tree.found}
    for _, attrs, _ in tree.found:
        assert not {"src", "style", "srcset", "action"} & attrs.keys()
        assert not [name for name in attrs if name.startswith("on")]
        assert attrs.get("href", "#charts").startswith("#")
    assert "url(" not in page


def test_the_policy_allows_only_the_style_of_the_page(page):
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = [
        attrs["content"] for attrs in Tree(page).all("meta") if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy == f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"


def test_hostile_names_and_prompts_are_text(page):
    record = make_record(texts=(EVIL + "x" * 10**6,) * 64, ids=(EVIL,) * 64)
    hostile = page_of(report_of([profile_of(record, "a" * 30)]))
    for each in (page, hostile):
        assert "<script" not in each and "<img" not in each
    assert "\u202e" not in hostile and "\x00" not in hostile and "x" * 141 not in hostile
    assert "&lt;script&gt;" in hostile and "\\u202e" in hostile


def test_every_chart_has_a_title_a_description_and_a_table(page, report):
    tree = Tree(page)
    for place, figures in enumerate(re.findall(r"<figure.*?</figure>", page, re.DOTALL)):
        inside = Tree(figures)
        assert inside.all("svg") and len(inside.all("title")) >= len(inside.all("svg")) == len(inside.all("desc"))
        assert len(inside.all("table")) == 1 and inside.all("summary")
        sides = ["r" if cell.get("class") == "r" else "l" for cell in inside.all("th")]
        assert "".join(sides) == report.charts[place].table.align
        assert len(re.findall("<tr>", figures)) == 1 + len(report.charts[place].table.rows) > 1
    assert len(tree.all("figure")) == len(report.charts) >= 9


def test_one_cost_is_shown_at_a_time(page):
    for shown in ("rollouts", "tokens", "hours"):
        hidden = re.findall(rf":root:has\(#cost-{shown}:checked\) \.over-(\w+){{display:none}}", page)
        assert sorted(hidden) == sorted({"rollouts", "tokens", "hours"} - {shown})
        assert f'id="cost-{shown}"' in page and f'class="scroll over-{shown}"' in page


def test_an_unknown_cost_is_said_and_cannot_be_chosen():
    tokens, written = np.full(5120, np.nan), np.full(640, np.nan)
    page = page_of(report_of([profile_of(make_record(tokens=tokens), "a")]))
    assert page.count('type="radio"') == 2 and page.count(" checked") == 1
    assert "Tokens were not recorded." in page and "over-tokens" not in page
    assert 'type="radio"' not in page_of(report_of([profile_of(make_record(tokens=tokens, written=written), "a")]))


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_lines_have_contrast(colours):
    for name in ("text", "quiet", "focus", *(f"c{at}" for at in range(8))):
        assert contrast(colours[name], colours["ground"]) >= 4.5, name


def test_a_page_of_1000_steps_is_small_and_quick():
    record = make_record(steps=1000, prompts=64)
    assert len(record.reward) == 512_000
    started = time.process_time()
    page = page_of(report_of([profile_of(record, "large")]))
    assert time.process_time() - started < 3
    assert len(page.encode()) < 1_000_000


def test_json_says_what_the_page_says(report, page):
    found = json.loads(json_of(report))
    for name, summary in zip(report.names[:1], report.summaries[:1], strict=True):
        assert summary in page
        assert (name, summary) in [(run["name"], run["summary"]) for run in found["runs"]]
    said = [each for decisions in report.decisions for each in decisions]
    assert said and said == [each for run in found["runs"] for each in run["decisions"]]
    for chart in report.charts:
        assert found["charts"][chart.key]["title"] == chart.title
        assert len(found["charts"][chart.key]["series"]) == len(chart.series)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_first_steps_of_a_run_can_be_shown(steps):
    Tree(page_of(report_of([profile_of(make_record(steps=steps, prompts=1), "young")])))


def test_advice_and_replayed_rules_are_those_of_their_commands():
    record = make_record(steps=60, prompts=16)
    found = replay(record, {"vip": VIP(), "mixed": Mixed()})
    profile = profile_of(record, "a", advice=True, replayed=lambda own: found)
    report = report_of([profile])
    advice, rules, choices = report.tables[:3]
    given = [
        each for each in advice_of(record).recommended + advice_of(record).considered if np.isfinite(each.saving.value)
    ]
    assert [row[0] for row in advice.rows] == [each.change for each in given]
    assert [row[-1].split()[0] for row in advice.rows] == [f"{each.saving.value:.1%}" for each in given]
    first = profile.advice.recommended[0]
    assert any(first.code.command in note for note in advice.notes)
    assert any(note.endswith(first.condition) for note in advice.notes)
    split = dict(zip(rules.header, rules.rows[1], strict=True))
    assert split["variance"].startswith(f"{found.allocators[0].ratios['variance'].value:.2f} [")
    above = next(each for each in found.selectors if each.name == "mixed").above_shuffled
    assert choices.rows[1][2] == f"{above.value:+.3f} [{above.low:+.3f}, {above.high:+.3f}]"
    page, found = page_of(report), json.loads(json_of(report))["tables"]
    Tree(page)
    for table in (advice, rules, choices):
        assert all(escape(words) in page for words in (table.caption, *table.notes)) and table.caption in found


def test_a_report_without_runs_is_refused():
    with pytest.raises(ValueError, match="a report needs a run"):
        report_of([])
