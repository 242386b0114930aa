from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apportion import __version__, allocate

pytest.importorskip("typer")

from typer.testing import CliRunner, Result

from apportion.cli import app
from apportion.cli.allocation_text import allocation_text
from apportion.described import described_fields
from apportion.solve import solve
from apportion.stopping import RULES
from apportion.vote.setup import SETTINGS

ROOT = Path(__file__).parents[1]
VIP = ["--success", "0.1,0.5,0.9", "--budget", "24", "--high", "12"]
HORA = ["--method", "hora", "--successes", "0,2,4", "--trials", "4,4,4", "--budget", "24", "--high", "12"]


def command(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``python -m apportion`` with ``arguments``, or ``code``, in a process of its own."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    start = ["-m", "apportion"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *start, *arguments], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def answer(*arguments: str) -> dict[str, Any]:
    result = invoke("allocate", *arguments, "--json")
    assert result.exit_code == 0 and result.stderr == "", result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def refused(*arguments: str) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 2 and result.stdout == "", result.stdout
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1 and ";" in result.stderr
    return result.stderr


def test_json_is_one_object_and_nothing_else() -> None:
    done = command("allocate", *VIP, "--json")
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("\n") == 1
    assert json.loads(done.stdout) == {
        "method": "vip",
        "estimator": "rloo",
        "budget": 24,
        "prompts": 3,
        "counts": allocate([0.1, 0.5, 0.9], 24, high=12).tolist(),
        "measure": "gradient_variance",
        "objective": pytest.approx(2 * 0.36 / 6 + 1 / 9),
        "uniform": {"counts": [8, 8, 8], "objective": pytest.approx((2 * 0.36 + 1) / 7)},
    }


def test_bad_input_ends_the_process_with_code_2_and_one_line() -> None:
    done = command("allocate", "--success", "0.5", "--budget", "1000", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "error: budget must be between 3 and 64 for 1 prompts, got 1000; change the budget, low or high\n"
    )


def test_without_typer_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from apportion.__main__ import main; main()"
    done = command("allocate", code=code)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "apportion's command line needs typer, which is not installed; pip install 'apportion[cli]'\n"
    )


def test_the_lab_without_torch_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; from apportion.__main__ import main; main()"
    done = command("lab", "--dry-run", code=code)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: apportion.lab needs torch and transformers: pip install 'apportion[lab]'\n"


@pytest.mark.slow
def test_allocating_imports_no_torch_and_starts_quickly() -> None:
    code = (
        "import sys; sys.argv[1:] = {!r}\n"
        "from apportion.__main__ import main\n"
        "try: main()\n"
        "finally: assert not {{'torch', 'transformers', 'sklearn', 'matplotlib', 'pandas'}} & sys.modules.keys()"
    ).format(["allocate", *VIP])
    seconds = []
    for _ in range(5):
        started = cpu_seconds_of_children()
        done = command(code=code)
        seconds.append(cpu_seconds_of_children() - started)
        assert done.returncode == 0, done.stderr
    assert min(seconds) < 0.9  # of the processor, for the clock depends on what else runs


def cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_text_output_has_aligned_columns() -> None:
    result = invoke("allocate", *VIP)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "prompt  rollouts  uniform",
        "     0         7        8",
        "     1        10        8",
        "     2         7        8",
        "",
        "gradient variance: 0.2311, uniform 0.2457 (ratio 0.9406)",
    ]


def test_a_terminal_gets_a_drawn_table() -> None:
    pytest.importorskip("rich")
    drawn = allocation_text(solve([0.1, 0.9], 12), ["[red]", "b"], terminal=True)
    assert "rollouts" in drawn and "[red]" in drawn and "│" in drawn


def test_many_prompts_are_summarised(tmp_path: Path) -> None:
    path = tmp_path / "prompts.csv"
    path.write_text("id,success\n" + "".join(f"p{i},{(i % 99 + 1) / 100}\n" for i in range(5000)))
    result = invoke("allocate", "--input", str(path), "--budget", "40000", "--out", str(tmp_path / "counts.csv"))
    assert result.exit_code == 0 and len(result.stdout.splitlines()) < 40
    assert "... and 4990 more" in result.stdout and "####" in result.stdout
    lines = (tmp_path / "counts.csv").read_text().splitlines()
    assert lines[0] == "id,count" and len(lines) == 5001
    assert sum(int(line.split(",")[1]) for line in lines[1:]) == 40000
    listed = answer("--input", str(path), "--budget", "40000")
    assert len(listed["counts"]) == len(listed["ids"]) == listed["prompts"] == 5000 and listed["ids"][0] == "p0"


def test_hora_from_options_and_from_a_file_agree(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f'{{"successes": {s}, "trials": 4, "text": "?"}}\n' for s in (0, 2, 4)))
    options = answer(*HORA)
    assert options == answer("--method", "hora", "--input", str(path), "--budget", "24", "--high", "12")
    assert options["counts"] == [10, 8, 6] and options["measure"] == "expected_hits" and "ids" not in options


def test_the_uniform_baseline_of_uniform_is_itself() -> None:
    uniform = answer(*VIP, "--method", "uniform")
    assert uniform["uniform"] == {"counts": uniform["counts"], "objective": uniform["objective"]}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--budget", "8"], "budget must be between 9 and 192 for 3 prompts, got 8"),
        (["--budget", "193"], "got 193"),
        (["--budget", "-1"], "got -1"),
        (["--low", "2"], "low must be at least 3 for vip"),
        (["--low", "5", "--high", "4"], "high must be at least low"),
        (["--success", "0.1,nan"], "success must be in [0, 1], got nan"),
        (["--success", "0.1,1.5"], "success must be in [0, 1], got 1.5"),
        (["--success", "0.1,half"], "--success must be numbers separated by commas, got '0.1,half'"),
        (["--success", ""], "--success must be numbers separated by commas, got ''"),
        (["--method", "vpi"], "method must be one of uniform, vip, hora, got 'vpi'"),
        (["--estimator", "grpo"], "estimator must be one of rloo, dr_grpo for vip, got 'grpo'"),
        (["--method", "hora"], "hora takes no success probabilities"),
        (["--trials", "4,4,4"], "vip takes no successes and trials"),
        (["--input", "x.csv"], "prompts come from --input or from --success, got both"),
        (["--out", "counts.txt"], "counts are written as .csv"),
    ],
)
def test_a_wrong_option_is_refused(arguments: list[str], problem: str) -> None:
    assert problem in refused("allocate", "--success", "0.1,0.5,0.9", "--budget", "24", *arguments)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "prompts are needed, got none; give --input, or --success"),
        (
            ["--method", "hora", "--successes", "1,2"],
            "hora needs successes and trials of its pre-rollouts, got no trials",
        ),
        (["--method", "hora", "--successes", "5", "--trials", "4"], "got 5 of 4 for prompt 0"),
        (["--method", "hora", "--successes", "1,1", "--trials", "4"], "must be of one length, got 2 and 1"),
        (["--input", "missing.csv"], "must be readable, got missing.csv"),
        (["--input", "prompts.xlsx"], "must end in .csv, .jsonl, .parquet"),
    ],
)
def test_wrong_prompts_are_refused(arguments: list[str], problem: str) -> None:
    assert problem in refused("allocate", "--budget", "24", *arguments)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "must have at least one row"),
        ("id,rate\na,0.5\n", "must have a column success, got id, rate"),
        ("id,success\na,0.5\nb,many\n", "got 'many' in"),
        ("id,success\na,0.5\nb,many\n", "line 3"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "prompts.csv").write_text(content)
    assert problem in refused("allocate", "--budget", "24", "--input", str(tmp_path / "prompts.csv"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["allocate"],
        ["vote"],
        ["vote", "--wave"],
        ["alocate"],
        ["--frobnicate"],
        ["allocate", "--budget", "many"],
        ["lab", "--nmae"],
        ["trl", "--labels", "none"],
        ["train"],
    ],
)
def test_usage_errors_take_one_line(arguments: list[str]) -> None:
    assert "--help" in refused(*arguments)


def ask(folder: Path, *arguments: str) -> list[str]:
    """Return the arguments of ``apportion vote`` for two questions and an address where nothing listens."""
    path = folder / "questions.jsonl"
    path.write_text('{"id": "a", "prompt": "1 + 1?", "answer": 2}\n{"id": "b", "prompt": "2 + 2?"}\n')
    server = ["--base-url", "http://127.0.0.1:9/v1", "--model", "tiny", "--max-samples", "8", "--max-retries", "0"]
    return ["vote", *server, "--questions", str(path), "--out", str(folder / "answers.jsonl"), *arguments]


def test_a_dry_run_estimates_and_writes_nothing(tmp_path: Path) -> None:
    result = invoke(*ask(tmp_path, "--rule", "fixed", "--dry-run", "--no-curtail"))
    assert result.exit_code == 0 and result.stderr == ""
    assert result.stdout.splitlines()[:2] == ["questions          2, 0 of them finished", "samples            16 to 16"]
    priced = invoke(*ask(tmp_path, "--dry-run", "--json", "--price-input", "1", "--price-output", "2", "--limit", "1"))
    estimated = json.loads(priced.stdout)
    assert estimated["questions"] == 1 and estimated["most_completion_tokens"] == 8 * 2048
    assert estimated["most_cost"] == pytest.approx((estimated["most_prompt_tokens"] + 2 * 8 * 2048) / 1e6)
    assert [path.name for path in tmp_path.iterdir()] == ["questions.jsonl"]


def test_an_unreachable_server_takes_one_line(tmp_path: Path) -> None:
    assert "127.0.0.1:9/v1 cannot be reached" in refused(*ask(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--rule", "optop"], "rule must be known, got 'optop'; did you mean 'optpo'?"),
        (["--set", "eps=often"], "calibrated.eps must be a number, got 'often'"),
        (["--set", "window=8"], "no key 'window'"),
        (["--set", "eps"], "an override must be key=value, got 'eps'"),
        (["--extra-body", "top_k=20"], "extra_body must be JSON, got 'top_k=20'"),
        (["--extra-body", '{"api_key": "hush'], "extra_body must be JSON, got a text that seems to hold a secret"),
        (["--extra-body", "[20]"], "extra_body must be a JSON object, got '[20]'"),
        (["--extra-body", '{"n": 2}'], "extra_body must not hold n, which the client sets"),
        (["--header", "X-Key"], "--header must be NAME=VALUE, got no name or no = in number 1"),
        (["--header", "X-A=1", "--header", "X-A=2"], "--header must be given once for a name, got 'X-A' twice"),
        (["--header", "Host=me"], "headers must not hold Host, which the client sets"),
        (["--seed", "3", "--no-seed"], "seed must be given once, got 3 and --no-seed; leave one out"),
        (["--system", "Be brief.", "--api", "completions"], 'system must go with api="chat"'),
        (["--wave", "many"], "wave must be an integer of at least 1"),
        (["--wave", "0"], "wave must be an integer of at least 1"),
        (["--max-samples", "0"], "max_samples must be an integer of at least 1"),
        (["--template", "2 + 2?"], "template must contain {question}"),
        (["--extract", "all"], "extract must be one of"),
        (["--equivalence", "loose"], "equivalence must be one of exact, math"),
        (["--top-p", "2"], "top_p must be"),
        (["--concurrency", "0"], "concurrency must be at least 1"),
        (["--deadline", "0"], "deadline must be above 0 seconds"),
        (["--limit", "0"], "limit must be at least 1"),
        (["--price-input", "1"], "prices must be given for prompts and for completions"),
        (["--base-url", "localhost"], "base_url must start with http"),
        (["--out", "answers.csv"], "answers are written as .jsonl"),
        (["--questions", "missing.jsonl"], "must be readable, got missing.jsonl"),
    ],
)
def test_wrong_settings_of_a_vote_are_refused_before_it_starts(
    tmp_path: Path, arguments: list[str], problem: str
) -> None:
    for dry_run in ([], ["--dry-run"]):
        assert problem in refused(*ask(tmp_path, *arguments, *dry_run))
    assert [path.name for path in tmp_path.iterdir()] == ["questions.jsonl"]


def test_every_setting_of_a_vote_is_an_option_with_the_help_of_its_field() -> None:
    done = command("vote", "--help")
    assert done.returncode == 0 and all(name in done.stdout for name in RULES)
    for cls, names in SETTINGS:
        described = described_fields(cls)
        for name in names:
            own = {"timeout_seconds": "--request-timeout", "headers": "--header"}
            flag = own.get(name, f"--{name.replace('_', '-')}")
            assert flag in done.stdout and described[name].split()[0] in done.stdout
    text = " ".join(done.stdout.split())
    assert "--target" in done.stdout and "--no-curtail" in text and "--no-seed" in text


@pytest.mark.slow
def test_no_help_is_cut_off() -> None:
    """typer ends what it cuts with dots. The dots of an argument that may be repeated are not at the end of a text."""
    commands = (
        "allocate",
        "diagnose",
        "import",
        "lab",
        "replay",
        "report",
        "simulate",
        "trl",
        "vote",
        "serve",
        "watch",
    )
    for arguments in ([], *([name] for name in commands)):
        lines = command(*arguments, "--help").stdout.splitlines()
        assert not [line for line in lines if line.endswith("...") and not line.startswith("Usage:")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "completion"),
    [("apportion v", ["verl", "vote"]), ("apportion vote --ru", ["--rule"]), ("apportion vote --rule opt", ["optpo"])],
)
def test_the_shell_completes_commands_options_and_choices(
    words: str, completion: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("APPORTION_COMPLETE", "complete_bash"), ("TYPER_COMPLETE_ARGS", words)):
        monkeypatch.setenv(f"_{name}", value)
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert command().stdout.split() == completion


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["allocation=vip", "--cfg", "job", "--", "x y", "a=[1,2]"]])
def test_arguments_of_verl_are_passed_through_unchanged(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    fake = SimpleNamespace(main=lambda: seen.extend(sys.argv[1:]))
    monkeypatch.setitem(sys.modules, "apportion.verl.__main__", fake)
    monkeypatch.setattr(sys, "argv", ["apportion"])
    assert invoke("verl", *arguments).exit_code == 0
    assert seen == arguments


def test_voting_is_imported_only_by_its_command() -> None:
    code = (
        "import sys, apportion.cli\n"
        "heavy = {'openai', 'math_verify', 'rich', 'pydantic', 'scipy.special', 'apportion.vote'}\n"
        "assert not heavy & sys.modules.keys()"
    )
    done = command(code=code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_wrong_study_is_refused_before_anything_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert "cannot be read" in refused("lab", str(tmp_path / "missing.toml"), "--dry-run")
    assert "'sedes'" in refused("lab", "--set", "sedes=3", "--dry-run")


LEDGER = ["7 a+3 b*7 =", "2 a*3 =", "5 a-4 b+2 =", "9 a+1 ="]


def voted(folder: Path, prompts: str) -> list[str]:
    """Return the arguments of a dry run without labels, with 4 ``prompts`` a step, on the easy base."""
    path = folder / "prompts.jsonl"
    path.write_text(prompts)
    settings = ["training.base=easy", "training.prompts_per_step=4"]
    return ["lab", "--labels", "none", "--prompts", str(path), *(f"--set={each}" for each in settings), "--dry-run"]


@pytest.mark.slow
def test_a_dry_run_without_labels_counts_prompts_gold_steps_and_rollouts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    rows = [{"prompt": text} for text in LEDGER]
    rows[0]["answer"] = "00"
    result = invoke(*voted(tmp_path, "".join(json.dumps(row) + "\n" for row in rows)))
    assert result.exit_code == 0, result.stderr
    assert "4 for training from " in result.stdout
    assert " held out; no labels; gold of 1 is for the report alone" in result.stdout
    assert "steps       60 a run" in result.stdout
    assert "rollouts    at least 3,840 and at most 15,360 a run; 69,120 to 138,240 in all" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompts", "more", "problem"),
    [
        ([], [], "must have at least one row"),
        (["What is 6 x 7?"], [], "a problem reads like '7 a+3 b*7 =', got 'What is 6 x 7?'"),
        ([*LEDGER, LEDGER[1]], [], "must be there once"),
        (LEDGER[:3], [], "must hold at least the 4 prompts of a step, got 3"),
        (LEDGER, ["--labels", "gold"], "prompts and reset_every are for learning without labels"),
        (LEDGER, ["--labels", "some"], "training.labels must be one of 'gold', 'none', got 'some'"),
        (LEDGER, ["--allocator", "vip"], "labels must be 'gold' for vip, got 'none'"),
        (LEDGER, ["--allocator", "optop"], "did you mean 'optpo'?"),
        (LEDGER, ["--prompts", "missing.csv"], "must be readable, got missing.csv"),
        (LEDGER, ["--resume"], "--resume goes on with a started study, got also --prompts"),
    ],
)
def test_unusable_prompts_are_refused(tmp_path: Path, prompts: list[str], more: list[str], problem: str) -> None:
    pytest.importorskip("torch")
    written = "".join(json.dumps({"prompt": text}) + "\n" for text in prompts)
    assert problem in refused(*voted(tmp_path, written), *more)
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]


def test_version_and_help() -> None:
    assert invoke("--version").stdout == f"apportion {__version__}\n"
    assert "allocate" in invoke().stdout and invoke().exit_code == 0
    assert invoke("allocate", "--help").exit_code == 0
    assert "posterior_predictive" in invoke("vote", "--help").stdout


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``script``, in which "apportion" is this package's command, in ``folder``."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    script = f'apportion() {{ "{sys.executable}" -m apportion "$@"; }}\n{script}'
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": path}
    )


VOTE = ["vote", "--questions", "q.jsonl", "--out", "o.jsonl", "--base-url", "http://a", "--model", "m", "--dry-run"]
ALLOCATE = "apportion allocate --success 0.1,0.5,0.9 --budget 24"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [ALLOCATE, f"{ALLOCATE} --json", "apportion --help", "apportion vote --help"])
def test_a_full_disk_for_the_output_is_one_line_and_exit_code_1(tmp_path: Path, arguments: str) -> None:
    done = shell(f"{arguments} > /dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr == ("error: the output cannot be written (No space left on device); give it room or a reader\n")


@pytest.mark.parametrize("arguments", [ALLOCATE, "apportion --help"])
def test_a_reader_that_is_gone_is_one_line_and_exit_code_1(tmp_path: Path, arguments: str) -> None:
    # The reader has ended before the command writes, because the command waits for it.
    done = shell(f"exec 3> >(exec true); wait $!; {arguments} >&3", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written (Broken pipe); give it room or a reader\n"


def test_a_closed_stdout_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    done = shell(f"{ALLOCATE} >&-", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written, because stdout is closed; open it\n"


def test_ids_do_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"id": "\\u001b[31mred", "success": 0.5}\n')
    result = invoke("allocate", "--budget", "8", "--input", str(tmp_path / "p.jsonl"))
    assert result.exit_code == 0 and r"\x1b[31mred" in result.stdout and "\x1b" not in result.stdout


@pytest.mark.parametrize("where", ["2> /dev/full", "2>&-"])
@pytest.mark.parametrize("arguments", ["apportion allocate --budget 24", "apportion allocate --nope"])
def test_the_exit_code_says_what_a_closed_stderr_cannot(tmp_path: Path, arguments: str, where: str) -> None:
    assert shell(f"{arguments} {where}", tmp_path).returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["allocate", "--budget", "3", "--success", "x" * 100_000],
        ["allocate", "--budget", "9" * 5000, "--success", "0.5"],
        ["allocate", "--budget", "3", "--success", "\x1b[31m0.5"],
        ["allocate", "--\x1b[31mbudget", "3"],
        ["allocate", "--budget", "3", "--success", "0.5", "--method", "m" * 100_000],
        ["allocate", "--budget", "3", "--success", "0.5", "--high", str(2**63)],
        ["allocate", "--budget", "", "--success", "0.5"],
        ["lab", "--set", "k" * 100_000 + "=1"],
        ["lab", "--set", ".".join(["a"] * 10_000) + "=1"],
        ["lab", "--set", "x=" + "[" * 5000],
        ["lab", "--set", "training.steps=" + "9" * 5000],
        ["lab", "--set", f"training.steps={2**70}"],
        ["lab", "--set", "__class__=1"],
        ["lab", "--set", f"training.problems={10**12}"],
        ["lab", "--labels", "none", "--prompts", "deep.jsonl"],
        ["lab", "--set", f"training.base={'b' * 100_000}"],
        ["lab", "--name", ".."],
        ["lab", "--name", "n" * 100_000],
        ["lab", "--name", "n" * 100_000, "--resume"],
        ["lab", "--name", "\x1b[31m"],
        ["lab", "--allocator", "a" * 100_000],
        ["lab", "c" * 100_000],
        ["lab", "/dev/zero"],
        ["trl", "/dev/zero"],
        ["trl", "--name", "n" * 100_000, "--resume"],
        [*VOTE, "--extra-body", "[" * 5000],
        [*VOTE, "--extra-body", '{"a": 1, "a": 2}'],
        [*VOTE, "--extra-body", '{"a": NaN}'],
        [*VOTE, "--max-samples", str(2**63)],
        [*VOTE, "--concurrency", str(2**63)],
        [*VOTE, "--wave", "9" * 5000],
        [*VOTE, "--wave", "²"],
        [*VOTE, "--template", "t" * 100_000],
        [*VOTE, "--rule", "r" * 100_000],
        [*VOTE, "--set", "__class__=1"],
        [*VOTE, "--deadline", "nan"],
        [*VOTE, "--out", "o" * 100_000 + ".jsonl"],
    ],
    ids=itertools.count(),
)
def test_a_hostile_option_is_one_short_printable_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("q.jsonl").write_text('{"prompt": "1 + 1?"}\n')
    Path("deep.jsonl").write_text("[" * 5000)
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.exception
    line = result.stderr.removesuffix("\n")
    assert line.startswith("error: ") and line.isprintable() and len(line) < 3000
    assert {path.name for path in tmp_path.iterdir()} == {"q.jsonl", "deep.jsonl"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["lab", "wrong.toml"],
        ["lab", "--set", "training.learning_rate=-1"],
        ["lab", "--labels", "nope"],
        ["lab", "--labels", "none", "--prompts", "wrong.jsonl"],
        ["trl", "wrong.toml"],
        ["trl", "job.toml", "--set", "allocator.low=-1"],
        ["vote", "--questions", "none.jsonl", "--out", "o.jsonl", "--base-url", "http://localhost", "--model", "m"],
    ],
)
def test_a_wrong_configuration_is_refused_before_torch_is_imported(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "wrong.toml").write_text("nothing = 1\n")
    (tmp_path / "wrong.jsonl").write_text("[\n")
    (tmp_path / "job.toml").write_text('model = "m"\nallocator = {name = "vip"}\ndata = {path = "q.jsonl"}\n')
    code = (
        f"import os, sys; os.chdir({str(tmp_path)!r}); from apportion.__main__ import main\n"
        "try: main()\n"
        "finally: assert not {'torch', 'transformers', 'trl', 'datasets'} & sys.modules.keys()"
    )
    done = command(*arguments, code=code)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
