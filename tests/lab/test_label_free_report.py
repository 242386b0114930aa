import pytest

from apportion.lab.label_free_picture import draw_label_free
from apportion.lab.label_free_report import accuracy_table, findings, verdict, vote_table
from apportion.lab.label_free_results import summarise_label_free
from tests.lab.test_label_free_results import study_of


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_tables_hold_the_start_every_arm_and_what_was_saved(tmp_path):
    summary = summarise_label_free(study_of(tmp_path), "ttrl")
    accuracy, votes = accuracy_table(summary, "ttrl"), vote_table(summary)
    heads, rows = cells(accuracy[0]), [cells(line) for line in accuracy[2:-1]]
    assert [row[0] for row in rows] == ["(start)", "ttrl", "optpo"]
    assert dict(zip(heads, rows[0], strict=True))["mean@16"] == "0.250 ± 0.000"
    assert dict(zip(heads, rows[2], strict=True))["mean@16 - ttrl"] == summary[1].mean_16_difference.signed
    optpo = dict(zip(cells(votes[0]), cells(votes[3]), strict=True))
    assert optpo["labels right"] == "0.600 ± 0.000" and optpo["saved"] == summary[1].tokens_saved.percent
    assert optpo["rollouts"] == "19" and optpo["CPU s"] == "4"


def test_an_arm_that_made_no_label_has_no_shares_of_labels(tmp_path):
    votes = vote_table(summarise_label_free(study_of(tmp_path, labels=[(0, 0, 0)] * 3), "ttrl"))
    optpo = dict(zip(cells(votes[0]), cells(votes[3]), strict=True))
    assert optpo["labels right"] == optpo["false consensus"] == "-"


def test_a_saving_beyond_noise_is_told_with_its_accuracy_and_what_is_not_ruled_out(tmp_path):
    summary = summarise_label_free(study_of(tmp_path), "ttrl")
    saved, difference = summary[1].rollouts_saved, summary[1].mean_16_difference
    assert verdict(summary, "ttrl") == (
        f"against ttrl: optpo takes {saved.percent} fewer rollouts at mean@16 {difference.signed}"
    )
    said = findings(summary, "ttrl", 3, 60, known=32, prompts=32)
    assert any(line.startswith("optpo takes 35.6% ± 9.6% fewer rollouts and 35.6%") for line in said)
    loss = difference.half_width - difference.mean
    assert any(
        f"within noise ({difference.signed}): a loss of up to {loss:.3f} is not ruled out" in line for line in said
    )
    assert any("Every arm takes 60 steps" in line for line in said)
    assert "Right answers are known for all 32 prompts" in said[-1]
    assert "Right answers are given for 3 of the 32 prompts" in findings(summary, "ttrl", 3, None, 3, 32)[-1]


def test_an_accuracy_that_is_lower_beyond_noise_is_said_to_be(tmp_path):
    said = findings(summarise_label_free(study_of(tmp_path, mean_16=(0.4, 0.39)), "ttrl"), "ttrl", 3, 60, 32, 32)
    assert any("its mean@16 is lower beyond noise (-0.103 ± 0.014)" in line for line in said)


def test_more_rollouts_and_as_many_are_called_so(tmp_path):
    more = summarise_label_free(study_of(tmp_path / "more", rollouts=(60, 60)), "ttrl")
    assert "optpo takes 100.0% ± 0.0% more rollouts" in verdict(more, "ttrl")
    alike = summarise_label_free(study_of(tmp_path / "alike", rollouts=(30, 30)), "ttrl")
    assert verdict(alike, "ttrl") == "against ttrl: as many within noise: optpo"


def test_one_seed_claims_nothing(tmp_path):
    single = {name: mine[:1] for name, mine in study_of(tmp_path).items()}
    summary = summarise_label_free(single, "ttrl")
    assert "can be told from noise" in verdict(summary, "ttrl")
    assert not any("beyond" in line or "ruled out" in line for line in findings(summary, "ttrl", 1, 60, 32, 32))
    assert verdict(summary[:1], "ttrl") == "nothing to compare"


def test_without_gold_only_votes_and_drift_are_told(tmp_path):
    summary = summarise_label_free(study_of(tmp_path, gold=False), "ttrl")
    heads = cells(vote_table(summary)[0])
    assert "labels right" not in heads and "drift" in heads and "no label" in heads
    said = findings(summary, "ttrl", 3, 60, 0, 32)
    assert any("what that does to accuracy is not shown" in line for line in said)
    assert said[-1] == "No right answer is given for the 32 prompts, so only votes and drift are shown."
    assert not any("mean@16" in line for line in said)


@pytest.mark.parametrize("gold", [True, False])
def test_the_picture_is_drawn_with_gold_and_without(tmp_path, gold):
    paths = [tmp_path / "curves.png", tmp_path / "curves.svg"]
    draw_label_free(study_of(tmp_path, gold=gold), "one; two", paths)
    assert all(path.stat().st_size > 5000 for path in paths)
