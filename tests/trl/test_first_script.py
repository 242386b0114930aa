"""The first script of docs/trl.md, copied as a user would, trains on all of its rows; only the model is a small one."""

from tests.trl.tiny import page_script


def test_the_first_script_trains_on_all_rows(policy, tmp_path, capsys, monkeypatch):
    settings = "max_steps=3, use_cpu=True, bf16=False, report_to=[], logging_steps=1, max_completion_length=4"
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(page_script("trl.md", "AllocatedGRPOTrainer", policy, settings), names)
    history = names["trainer"].state.log_history[:3]
    assert [each["allocation/rows"] for each in history] == [32] * 3
    assert [each["allocation/prompts"] for each in history] == [4] * 3
    assert "uniform: a batch of 4 prompts samples 32 rollouts in one round" in capsys.readouterr().err
