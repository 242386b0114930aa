import json
import os
import re
import resource
import shlex
from contextlib import ExitStack
from pathlib import Path

import pytest

from apportion import __version__, allocate

pytest.importorskip("typer")

from apportion.described import described_fields
from apportion.stopping import RULES
from apportion.vote.setup import SETTINGS
from tests.builders import write_jsonl
from tests.cases import check_all, lines
from tests.commands import invoke, parsed, printed, refuse_all, refused
from tests.warm import cold, forked

ROOT = Path(__file__).parents[1]
VIP = "--success 0.1,0.5,0.9 --budget 24 --high 12"
FULL = Path("/dev/full")


def answer(arguments):
    return parsed("allocate", *shlex.split(arguments))


def test_json_is_one_object_and_nothing_else():
    expected = '{"method": "vip", "estimator": "rloo", "budget": 24, "prompts": 3, "measure": "gradient_variance"}'
    assert answer(VIP) == json.loads(expected) | {
        "counts": allocate([0.1, 0.5, 0.9], 24, high=12).tolist(),
        "objective": pytest.approx(2 * 0.36 / 6 + 1 / 9),
        "uniform": {"counts": [8, 8, 8], "objective": pytest.approx((2 * 0.36 + 1) / 7)},
    }
    uniform = answer(f"{VIP} --method uniform")
    assert uniform["uniform"] == {"counts": uniform["counts"], "objective": uniform["objective"]}


def test_bad_input_ends_the_process_with_code_2_and_one_line():
    done = forked(["-m", "apportion", *shlex.split("allocate --success 0.5 --budget 1000 --json")])
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "error: budget must be between 3 and 64 for 1 prompts, got 1000; change the budget, low or high\n"
    )


@pytest.mark.slow
def test_allocating_imports_no_torch_and_starts_quickly():
    code = (
        "import sys\nfrom apportion.__main__ import main\n"
        "try: main()\n"
        "finally: assert not {'torch', 'transformers', 'sklearn', 'matplotlib', 'pandas', 'scipy'} & sys.modules.keys()"
    )
    own, scipy = (
        min(cpu_seconds(each, "allocate", *VIP.split()) for _ in range(3)) for each in (code, "import scipy.stats")
    )
    assert own < scipy, f"apportion allocate takes {own} s of the processor, and to import scipy.stats {scipy} s"


def cpu_seconds(code, *arguments):
    """Return the processor time that ``code`` takes in a new process: the clock depends on what else runs."""
    started = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = cold("-c", code, *arguments)
    assert done.returncode == 0, done.stderr
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime - started.ru_utime - started.ru_stime


def test_many_prompts_are_summarised(tmp_path):
    path = tmp_path / "prompts.csv"
    path.write_text("id,success\n" + "".join(f"p{i},{(i % 99 + 1) / 100}\n" for i in range(5000)))
    given = f"--input {path} --budget 40000"
    said = printed("allocate", *given.split())
    assert len(said.splitlines()) < 40 and "... and 4990 more" in said and "rollouts of a prompt: 3 to " in said
    listed = answer(given)
    assert sum(listed["counts"]) == 40000
    assert len(listed["counts"]) == len(listed["ids"]) == listed["prompts"] == 5000 and listed["ids"][0] == "p0"


def test_hora_from_options_and_from_a_file_agree(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f'{{"successes": {s}, "trials": 4, "text": "?"}}\n' for s in (0, 2, 4)))
    found = answer("--method hora --successes 0,2,4 --trials 4,4,4 --budget 24 --high 12")
    assert found == answer(f"--method hora --input {path} --budget 24 --high 12")
    assert found["counts"] == [10, 8, 6] and found["measure"] == "expected_hits" and "ids" not in found


def test_wrong_options_and_prompts_of_allocate_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty.csv").write_text("")
    Path("rate.csv").write_text("id,rate\na,0.5\n")
    Path("many.csv").write_text("id,success\na,0.5\nb,many\n")
    options = """
        --budget 8           => budget must be between 9 and 192 for 3 prompts, got 8
        --budget 193         => got 193
        --budget -1          => got -1
        --low 2              => low must be at least 3 for rloo
        --low 5 --high 4     => high must be at least low
        --success 0.1,nan    => success must be in [0, 1], got nan
        --success 0.1,1.5    => success must be in [0, 1], got 1.5
        --success 0.1,half   => --success must be numbers separated by commas, got '0.1,half'
        --success ''         => --success must be numbers separated by commas, got ''
        --method vpi         => method must be one of uniform, vip, hora, got 'vpi'
        --estimator grpo     => estimator must be one of rloo, dr_grpo, got 'grpo'
        --method hora        => hora takes no success probabilities
        --trials 4,4,4       => vip takes no successes and trials
        --input x.csv        => prompts come from --input or from --success, got both
    """
    refuse_all(options, "allocate", "--success", "0.1,0.5,0.9", "--budget", "24")
    prompts = """
                             => prompts are needed, got none; give --input, or --success
        --method hora --successes 1,2 => hora needs successes and trials of its pre-rollouts, got no trials
        --method hora --successes 5 --trials 4 => got 5 of 4 for prompt 0
        --method hora --successes 1,1 --trials 4 => must be of one length, got 2 and 1
        --input missing.csv  => must be readable, got missing.csv
        --input prompts.xlsx => must end in .csv, .jsonl, .parquet
        --input empty.csv    => must have at least one row
        --input rate.csv     => must have a column success, got id, rate
        --input many.csv     => got 'many' in many.csv line 3
    """
    refuse_all(prompts, "allocate", "--budget", "24")


def test_usage_errors_take_one_line():
    words = "allocate|vote|vote --wave|alocate|--frobnicate|allocate --budget many|lab --nmae|lab --labels|train"
    check_all(lambda wrong: refused(*wrong.split()).index("--help"), [(wrong,) for wrong in words.split("|")])


def ask(folder, *arguments):
    """Return the arguments of ``apportion vote`` for two questions and an address where nothing listens."""
    path = folder / "questions.jsonl"
    path.write_text('{"id": "a", "prompt": "1 + 1?", "answer": 2}\n{"id": "b", "prompt": "2 + 2?"}\n')
    server = "--base-url http://127.0.0.1:9/v1 --model tiny --max-samples 8 --max-retries 0"
    return [*f"vote {server} --questions {path} --out {folder}/answers.jsonl".split(), *arguments]


def test_a_dry_run_estimates_and_writes_nothing(tmp_path):
    result = invoke(*ask(tmp_path, "--rule", "fixed", "--dry-run", "--no-curtail"))
    assert result.exit_code == 0 and result.stderr == ""
    assert result.stdout.splitlines()[:2] == ["questions          2, 0 of them finished", "samples            16 to 16"]
    estimated = parsed(*ask(tmp_path, *shlex.split("--dry-run --price-input 1 --price-output 2 --limit 1")))
    assert estimated["questions"] == 1 and estimated["most_completion_tokens"] == 8 * 2048
    assert estimated["most_cost"] == pytest.approx((estimated["most_prompt_tokens"] + 2 * 8 * 2048) / 1e6)
    assert [path.name for path in tmp_path.iterdir()] == ["questions.jsonl"]


def test_an_unreachable_server_takes_one_line(tmp_path):
    assert "127.0.0.1:9/v1 cannot be reached" in refused(*ask(tmp_path))


def test_wrong_settings_of_a_vote_are_refused_before_it_starts(tmp_path):
    settings = """
        --rule optop          => rule must be known, got 'optop'; did you mean 'optpo'?
        --set eps=often       => calibrated.eps must be a number, got 'often'
        --set window=8        => no key 'window'
        --set eps             => an override must be key=value, got 'eps'
        --extra-body top_k=20 => extra_body must be JSON, got 'top_k=20'
        --extra-body '{"api_key": "hush' => extra_body must be JSON, got a text that seems to hold a secret
        --extra-body '[20]'   => extra_body must be a JSON object, got '[20]'
        --extra-body '{"n": 2}' => extra_body must not hold n, which the client sets
        --header X-Key        => --header must be NAME=VALUE, got no name or no = in number 1
        --header X-A=1 --header X-A=2 => --header must be given once for a name, got 'X-A' twice
        --header Host=me      => headers must not hold Host, which the client sets
        --seed 3 --no-seed    => seed must be given once, got 3 and --no-seed; leave one out
        --system Brief. --api completions => system must go with api="chat"
        --wave many           => wave must be an integer of at least 1
        --wave 0              => wave must be an integer of at least 1
        --max-samples 0       => max_samples must be an integer of at least 1
        --template '2 + 2?'   => template must contain {question}
        --extract all         => extract must be one of
        --equivalence loose   => equivalence must be one of exact, math
        --top-p 2             => top_p must be
        --concurrency 0       => concurrency must be at least 1
        --deadline 0          => deadline must be above 0 seconds
        --limit 0             => limit must be at least 1
        --price-input 1       => prices must be given for prompts and for completions
        --base-url localhost  => base_url must start with http
        --base-url ftp://a/v1 => base_url must start with http:// or https://, got 'ftp://a/v1'; write http://a/v1
        --out answers.csv     => answers are written as .jsonl
        --questions missing.jsonl => must be readable, got missing.jsonl
    """
    refuse_all(settings, *ask(tmp_path))
    refuse_all(settings, *ask(tmp_path, "--dry-run"))
    assert [path.name for path in tmp_path.iterdir()] == ["questions.jsonl"]


def test_every_setting_of_a_vote_is_an_option_with_the_help_of_its_field():
    shown = invoke("vote", "--help").stdout
    assert all(name in shown for name in RULES)
    for cls, names in SETTINGS:
        described = described_fields(cls)
        for name in names:
            own = {"timeout_seconds": "--request-timeout", "headers": "--header"}
            flag = own.get(name, f"--{name.replace('_', '-')}")
            assert flag in shown and described[name].split()[0] in shown
    assert all(option in " ".join(shown.split()) for option in ("--target", "--no-curtail", "--no-seed"))


def test_no_help_is_cut_off_and_the_list_of_commands_says_what_each_says_itself():
    """typer ends what it cuts with dots. The dots of an argument that may be repeated are not at the end of a text."""
    commands = dict(re.findall(r"^  (\w+) +([A-Z].*)$", invoke("--help").stdout, re.MULTILINE))
    assert {"allocate", "vote", "serve", "evaluate"} <= commands.keys()
    for name, first in {"": "Decide how", **commands}.items():
        shown = invoke(*name.split(), "--help").stdout
        assert first in shown
        assert not [line for line in shown.splitlines() if line.endswith("...") and not line.startswith("Usage:")]


def test_the_shell_completes_commands_options_and_choices():
    def check(words, *completion):
        asked = {"_APPORTION_COMPLETE": "complete_bash", "COMP_WORDS": words, "_TYPER_COMPLETE_ARGS": words}
        done = forked(["-m", "apportion"], **asked, COMP_CWORD=str(len(words.split()) - 1))
        assert done.stdout.split() == [*completion]

    check_all(
        check,
        [("apportion v", "vote"), ("apportion vote --ru", "--rule"), ("apportion vote --rule opt", "optpo")],
    )


def test_voting_is_imported_only_by_its_command():
    code = (
        "import sys, apportion.cli\n"
        "heavy = {'openai', 'math_verify', 'rich', 'pydantic', 'scipy.special', 'apportion.vote'}\n"
        "assert not heavy & sys.modules.keys()"
    )
    done = cold("-c", code)
    assert done.returncode == 0, done.stderr


LEDGER = ["7 a+3 b*7 =", "2 a*3 =", "5 a-4 b+2 =", "9 a+1 ="]


def voted(folder, prompts):
    """Return the arguments of a dry run without labels, with 4 prompts a step, on the easy base."""
    path = write_jsonl(folder / "prompts.jsonl", [{"prompt": text} for text in prompts])
    settings = "--set=training.base=easy --set=training.prompts_per_step=4"
    return f"lab --labels none --prompts {path} {settings} --dry-run".split()


def test_unusable_prompts_are_refused(tmp_path):
    pytest.importorskip("torch")

    def check(prompts, more, problem):
        assert problem in refused(*voted(tmp_path, prompts), *more.split())
        assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]

    of_prompts = [
        ([], "must have at least one row"),
        (["What is 6 x 7?"], "a problem reads like '7 a+3 b*7 =', got 'What is 6 x 7?'"),
        ([*LEDGER, LEDGER[1]], "must be there once"),
        (LEDGER[:3], "must hold at least the 4 prompts of a step, got 3"),
    ]
    of_options = """
        --labels gold    => prompts and reset_every are for learning without labels
        --labels some    => training.labels must be one of 'gold', 'none', got 'some'
        --allocator vip  => labels must be 'gold' for vip, got 'none'
        --allocator optop => did you mean 'optpo'?
        --prompts missing.csv => must be readable, got missing.csv
        --resume         => --resume goes on with a started study, got also --prompts
    """
    check_all(check, [(prompts, "", problem) for prompts, problem in of_prompts])
    check_all(check, [(LEDGER, *line) for line in lines(of_options)])


def test_version_and_help():
    assert invoke("--version").stdout == f"apportion {__version__}\n"
    assert "allocate" in invoke().stdout and invoke().exit_code == 0


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_an_output_that_cannot_be_written_is_one_line_and_exit_code_1():
    """A full disk, a reader that is gone, and a closed stdout."""
    read, write = os.pipe()
    os.close(read)
    unwritable = "the output cannot be written ({}); give it room or a reader"
    outputs = {
        unwritable.format("No space left on device"): FULL.open("w"),
        unwritable.format("Broken pipe"): os.fdopen(write, "w"),
        "the output cannot be written, because stdout is closed; open it": None,
    }
    with ExitStack() as opened:
        for output in filter(None, outputs.values()):
            opened.enter_context(output)
        for arguments in (f"allocate {VIP}", f"allocate {VIP} --json", "--help", "vote --help"):
            for problem, output in outputs.items():
                done = forked(["-m", "apportion", *arguments.split()], streams={1: output})
                assert (done.returncode, done.stderr) == (1, f"error: {problem}\n"), arguments


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_the_exit_code_says_what_a_closed_stderr_cannot():
    with FULL.open("w") as full:
        for arguments in ("allocate --budget 24", "allocate --nope"):
            for errors in (full, None):
                assert forked(["-m", "apportion", *arguments.split()], streams={2: errors}).returncode == 2


def test_ids_do_not_reach_the_terminal_raw(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"id": "\\u001b[31mred", "success": 0.5}\n')
    said = printed("allocate", "--budget", 8, "--input", tmp_path / "p.jsonl")
    assert r"\x1b[31mred" in said and "\x1b" not in said


LONG, NINES, DEEP = "x" * 100_000, "9" * 5000, "[" * 5000
HOSTILE = {
    "allocate --success 0.5 --budget 3": [
        f"--success {LONG}", f"--budget {NINES}", "--success \x1b[31m0.5", "--\x1b[31mbudget 3", f"--method {LONG}",
        f"--high {2**63}", "--budget ''"
    ],
    "lab": [
        f"--set {LONG}=1", f"--set {'.'.join(['a'] * 10_000)}=1", f"--set x={DEEP}", f"--set training.steps={NINES}",
        f"--set training.steps={2**70}", "--set __class__=1", f"--set training.problems={10**12}",
        "--labels none --prompts deep.jsonl", f"--set training.base={LONG}", "--name ..", f"--name {LONG}",
        f"--name {LONG} --resume", "--name \x1b[31m", f"--allocator {LONG}", LONG, "/dev/zero"
    ],
    "vote --questions q.jsonl --out o.jsonl --base-url http://a --model m --dry-run": [
        f"--extra-body {DEEP}", """--extra-body '{"a": 1, "a": 2}'""", """--extra-body '{"a": NaN}'""",
        f"--max-samples {2**63}", f"--concurrency {2**63}", f"--wave {NINES}", "--wave ²", f"--template {LONG}",
        f"--rule {LONG}", "--set __class__=1", "--deadline nan", f"--out {LONG}.jsonl"
    ]
}  # fmt: skip
"""Options by what stands before them."""


def test_a_hostile_option_is_one_short_printable_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("q.jsonl").write_text('{"prompt": "1 + 1?"}\n')
    Path("deep.jsonl").write_text(DEEP)

    def check(arguments):
        result = invoke(*shlex.split(arguments))
        assert (result.exit_code, result.stdout) == (2, ""), result.exception
        line = result.stderr.removesuffix("\n")
        assert line.startswith("error: ") and line.isprintable() and len(line) < 3000
        assert {path.name for path in tmp_path.iterdir()} == {"q.jsonl", "deep.jsonl"}

    check_all(check, [(f"{before} {option}",) for before, options in HOSTILE.items() for option in options])


def test_a_wrong_configuration_is_refused_before_torch_is_imported(tmp_path):
    """All in one process, because none imports torch."""
    (tmp_path / "wrong.toml").write_text("nothing = 1\n")
    (tmp_path / "wrong.jsonl").write_text("[\n")
    commands = (
        "lab wrong.toml",
        "lab --set training.learning_rate=-1",
        "lab --labels nope",
        "lab --labels none --prompts wrong.jsonl",
        "vote --questions none.jsonl --out o.jsonl --base-url http://localhost --model m",
    )
    code = (
        f"import os, sys; os.chdir({str(tmp_path)!r}); from apportion.cli import app\n"
        "for words in sys.argv[1:]:\n"
        "    try: app(words.split())\n"
        "    except SystemExit as end: assert end.code == 2, words\n"
        "    assert not {'torch', 'transformers', 'trl', 'datasets'} & sys.modules.keys(), words"
    )
    done = cold("-c", code, *commands)
    assert done.returncode == 0, done.stderr
    assert [line[:7] for line in done.stderr.splitlines()] == ["error: "] * len(commands), done.stderr
