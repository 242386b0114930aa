"""Tables as text, with a header and without one."""

from apportion.runs.text_table import text_table

ROWS = [["samples", "40"], ["waves", "3.2"]]


def test_a_table_for_a_terminal_is_drawn_with_its_header_or_without_one():
    with_header = text_table(ROWS, ["name", "value"], align="lr", terminal=True).splitlines()
    without = text_table(ROWS, align="lr", terminal=True).splitlines()
    assert [cell.strip() for cell in with_header[1].strip("│").split("│")] == ["name", "value"]
    assert [cell.strip() for cell in without[1].strip("│").split("│")] == ["samples", "40"]
    assert len(with_header) == len(without) + 2
