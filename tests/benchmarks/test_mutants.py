"""Tests of the mutants: which places are broken and how, and that a broken copy is restored."""

from benchmarks.mutants import LEFT_OUT, drawn, files_of, mutants_of, rooms, suite_of

SOURCE = '''"""Text 1 + 1."""
LIMIT = 8

def kept(a: int, b: int = 2) -> int:
    """Return a - b."""
    if a < b and ready(a):
        raise ValueError(f"a must be at least {b + 1}")
    return max(a - b, 0)
'''


def broken(tmp_path):
    path = tmp_path / "one.py"
    path.write_text(SOURCE, encoding="utf-8")
    return {mutant.old: mutant.new for mutant in mutants_of("one", path, tmp_path)}


def test_conditions_operators_numbers_raises_and_returns_are_broken_and_words_are_not(tmp_path):
    assert broken(tmp_path) == {
        "a < b and ready(a)": "(a < b or ready(a))",
        "a < b": "(a >= b)",
        'raise ValueError(f"a must be at least {b + 1}")': "pass",
        "return max(a - b, 0)": "return None",
        "a - b": "(a + b)",
        "2": "3",
        "0": "1",
    }


def test_a_mutant_is_put_where_it_was_found(tmp_path):
    path = tmp_path / "one.py"
    path.write_text("# é\n" + SOURCE, encoding="utf-8")
    (mutant,) = [each for each in mutants_of("one", path, tmp_path) if each.old == "a - b"]
    assert mutant.broken(path.read_bytes()).decode() == "# é\n" + SOURCE.replace("max(a - b", "max((a + b)")
    assert mutant.place == "one.py:9"


def test_the_same_seed_draws_the_same_places_and_another_seed_others():
    first = drawn("allocators", 5, 0)
    assert first == drawn("allocators", 5, 0) != drawn("allocators", 5, 1)


def test_every_room_has_tests_that_exist():
    for room in rooms():
        assert room not in LEFT_OUT and files_of(room) and suite_of(room), room
