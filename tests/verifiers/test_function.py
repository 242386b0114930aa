import numpy as np
import pytest

from apportion.questions import Question
from apportion.rows import TableError
from apportion.verifiers import Function
from tests.cases import refuse_lines

SOURCE = """
import numpy as np
from dataclasses import dataclass

def right(text, gold):
    return text.endswith(gold)

def share(text, gold, scale=2.0):
    return len(gold) / len(text) / scale

def unscorable(text, gold):
    return None

def raises(text, gold):
    raise ZeroDivisionError("in the user's own code")

def word(text, gold):
    return "yes"

def nan(text, gold):
    return float("nan")

def array(text, gold):
    return np.bool_(text == gold)

def small(text, gold):
    return np.float32(0.25)

def golden(text, gold):
    return gold is None

def one(text):
    return True

def three(text, gold, more):
    return True

async def waits(text, gold):
    return True

number = 7
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my reward.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize(
    ("name", "score"),
    [("right", 1.0), ("share", 0.25), ("unscorable", None), ("array", 0.0), ("small", 0.25), ("golden", 0.0)],
)
def test_the_verdict_is_the_score_of_the_function(file, name, score):
    verdict = Function(f"{file}:{name}").verdict("ab", "b")
    assert verdict == score and type(verdict) is (float if score is not None else type(None))


def test_a_function_of_an_installed_module_is_found():
    assert Function("operator:eq").verdict("7", "7") == 1.0
    assert Function("os.path:join", needs_gold=False).function == "os.path:join"


def test_errors_of_the_function_are_raised(file):
    with pytest.raises(ZeroDivisionError, match="in the user's own code"):
        Function(f"{file}:raises").verdict("a", "b")


@pytest.mark.parametrize(("name", "shown"), [("word", "'yes'"), ("nan", "nan")])
def test_an_invalid_score_is_an_error(file, name, shown):
    with pytest.raises(TypeError, match=f"must return a bool, a finite number or None, got {shown}; correct it"):
        Function(f"{file}:{name}").verdict("a", "b")


def test_gold_is_needed_unless_the_settings_say_otherwise(file):
    questions = [Question("a", "What?", "1"), Question("b", "Why?")]
    with pytest.raises(TableError, match="each gold answer must be there, got None for 'b'; add it, or set needs_gold"):
        Function(f"{file}:golden").check(questions)
    free = Function(f"{file}:golden", needs_gold=False)
    free.check(questions)
    assert free.verdict("text", None) == 1.0


WRONG = """
    {}               => function must be "module:function" or "file.py:function", got
    :right           => name both
    {}:wrong         => define wrong in
    {}:number        => define number in
    {}:one           => function must take a completion and gold, got .*too many positional arguments
    {}:three         => function must take a completion and gold, got .*missing a required argument: 'more'
    {}:waits         => function must not be async
    nowhere.py:right => function must be in a file that exists, got 'nowhere.py'; check the path
    no_such_module:right   => function must be in a module that can be imported, got 'no_such_module'; install it
    operator.no_such:right => function must be in a module that can be imported, got 'operator.no_such'
"""


def test_an_invalid_function_is_refused_at_construction(file):
    refuse_lines(lambda function: Function(function.format(file)), WRONG)


def test_errors_of_the_import_are_raised(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import no_such_requirement\n")
    (tmp_path / "breaks.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    for where in ("needs_more", f"{tmp_path}/needs_more.py"):
        with pytest.raises(ModuleNotFoundError, match="no_such_requirement"):
            Function(f"{where}:right")
    with pytest.raises(ZeroDivisionError):
        Function(f"{tmp_path}/breaks.py:right")


def test_an_array_is_not_a_score(tmp_path):
    (tmp_path / "many.py").write_text("import numpy as np\ndef many(text, gold):\n    return np.ones(2)\n")
    with pytest.raises(TypeError, match="must return a bool, a finite number or None"):
        Function(f"{tmp_path}/many.py:many").verdict("a", "b")
    assert np.isscalar(Function("operator:eq").verdict("a", "b"))
