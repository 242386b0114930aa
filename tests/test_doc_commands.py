"""Every command in the documents' shell blocks: it exists, takes the options that it is given, and runs if it can."""

import re
import shlex
import shutil
import subprocess
import tomllib
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from apportion.cli import app
from apportion.trl.command import SCRIPTS, JobArguments
from apportion.verl.command import check_choices
from tests.cases import lines
from tests.soak import case
from tests.test_docs import commands, run
from tests.verl.composed import command as composed
from tests.verl.composed import stock

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:sh|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<![`\w])`((?:apportion|make) [a-z][^`]*)`")
RECORDED = "examples/data/grpo_run.jsonl.gz"
OTHERS = """
    curl            => a client of the gateway, which tests/gateway asks in the same way
    python -m venv  => the standard library's
    source          => the shell's
    export          => the shell's
    python my_rule.py => the user's rule of docs/own_rule.md, which tests/test_own_rule.py runs
    python -c       => the same rule
    python -m torch.distributed.run => the user's own train.py, as in tests/trl
"""
"""Commands that are not this project's, and why no test runs them."""


def cases():
    """Yield every command with the page that it stands on."""
    for page in PAGES:
        text = page.read_text()
        name = str(page.relative_to(ROOT))
        for words in [words for block in BLOCK.findall(text) for words in commands(block)]:
            yield pytest.param(words, id=f"{name}: {' '.join(words)[:70]}")
        for words in sorted({tuple(shlex.split(found)) for found in INLINE.findall(text)}):
            yield pytest.param([word for word in words if word != "..."], id=f"{name}, inline: {' '.join(words)[:60]}")


def check_apportion(words):
    """Parse the command with its options, without running it."""
    group = typer.main.get_command(app)
    assert words[0] in group.commands, f"apportion has no command {words[0]}"
    given = group.get_command(None, words[0])
    options = [word for word in words[1:] if word.startswith("--")]
    context = typer.Context(given, info_name=words[0])
    known = {name for option in given.get_params(context) for name in (*option.opts, *option.secondary_opts)}
    unknown = [name for word in options if (name := word.partition("=")[0]) not in known]
    assert not unknown, f"apportion {words[0]} has no option {unknown}"
    return None


def check_verl(words):
    """Compose the command's settings, as verl would before it starts.

    Hydra is slow, so it composes each choice of groups once, and the values are set afterwards by its own parser.
    """
    if "--cfg" in words:
        return
    values = [word for word in words if "." in word.partition("=")[0]]
    config, choices = composed(*(word for word in words if word not in values))
    for override in OverridesParser.create().parse_overrides(values):
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=override.is_add())
    check_choices(config, choices)


def trl_keys(algorithm):
    """Return the keys that the command for TRL reads."""
    kinds = [*SCRIPTS[algorithm].make_parser().dataclass_types, JobArguments]
    return {each.name for kind in kinds for each in fields(kind)}


def check(words):
    match words:
        case ["apportion", *rest]:
            check_apportion(rest)
        case ["python", "-m", "apportion.verl", *rest]:
            check_verl(rest)
        case ["python", "-m", "apportion.trl", "grpo" | "rloo" as algorithm, "--config", job]:
            assert set(yaml.safe_load((ROOT / job).read_text())) <= trl_keys(algorithm)
        case ["python", "-m", "verl.trainer.main_ppo", *rest]:
            stock(*rest)
        case ["python", "-m", module, *_] if module.startswith("benchmarks"):
            assert find_spec(module), f"there is no {module}"
        case ["python", script] if "/" in script:
            assert (ROOT / script).exists(), f"there is no {script}"
        case ["make", target, *settings]:
            makefile = (ROOT / "Makefile").read_text()
            assert re.search(rf"^{target}:", makefile, re.MULTILINE)
            assert all(f"$({setting.partition('=')[0]})" in makefile for setting in settings)
        case ["pip", "install", *packages]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            for asked in re.findall(r"\[(.*)\]", " ".join(packages)):
                assert set(asked.split(",")) <= extras["optional-dependencies"].keys()
        case _:
            known = any(words[: len(own)] == own for own in (other.split() for other, _ in lines(OTHERS)))
            assert known, f"no test knows {' '.join(words)}"


@pytest.mark.parametrize("words", cases())
def test_a_command_of_the_documents_exists_and_takes_its_options(words):
    check(words)


WRONG = """
    apportion diagnoze LOG
    apportion diagnose LOG --jason
    python -m apportion.verl allocation=vipp
    python -m apportion.verl allocation=vip allocation.allocator.lwo=3
    python -m benchmarks.no_such_benchmark
    make everything
    make reproduce PEICE=hora
    pip install apportion[everything]
    rm -r runs
"""


@pytest.mark.parametrize("words", commands(WRONG))
def test_a_wrong_command_is_found(words):
    with pytest.raises(Exception, match=r"."):
        check(words)


def runnable():
    """Return the commands of the documents that read the recorded run of examples/data."""
    found = [case for case in cases() if case.values[0][0] == "apportion" and RECORDED in case.values[0]]
    slow = {"diagnose", "replay"}  # test_first_run runs both, and make soak those of the documents
    return [case(*each.values, id=each.id, suite=each.values[0][1] not in slow) for each in found]


@pytest.mark.slow
@pytest.mark.parametrize("words", runnable())
def test_a_command_on_the_recorded_run_works(words, tmp_path):
    (tmp_path / RECORDED).parent.mkdir(parents=True)
    shutil.copy(ROOT / RECORDED, tmp_path / RECORDED)
    assert run(words, tmp_path).strip()


def test_files_for_a_cluster_are_read_by_the_shell_and_as_yaml():
    for script in (ROOT / "examples").glob("*.sh"):
        done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    job = yaml.safe_load((ROOT / "examples" / "verl_kubernetes.yaml").read_text())
    words = [word for word in shlex.split(job["spec"]["entrypoint"]) if word != "..."]
    assert job["kind"] == "RayJob" and words[:3] == ["python", "-m", "apportion.verl"]
    check(words)
