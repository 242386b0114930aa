"""The first script of docs/trl.md, copied as a user would, trains on all of its rows; only the model is a small one."""

import re
from pathlib import Path

from tests.trl.tiny import make_policy, make_tokenizer

DOCUMENT = Path(__file__).parents[2] / "docs" / "trl.md"


def test_the_first_script_trains_on_all_rows(tmp_path, capsys, monkeypatch):
    block = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)[0]
    make_policy().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    settings = "max_steps=3, use_cpu=True, bf16=False, report_to=[], logging_steps=1, max_completion_length=4"
    for old, new in (
        ('"Qwen/Qwen2.5-0.5B-Instruct"', repr(str(tmp_path / "model"))),
        ('"out",', f'"out", {settings},'),
    ):
        assert block.count(old) == 1
        block = block.replace(old, new)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(block, str(DOCUMENT), "exec"), names)
    history = names["trainer"].state.log_history[:3]
    assert [each["allocation/rows"] for each in history] == [32] * 3
    assert [each["allocation/prompts"] for each in history] == [4] * 3
    assert "uniform: a batch of 4 prompts samples 32 rollouts in one round" in capsys.readouterr().err
