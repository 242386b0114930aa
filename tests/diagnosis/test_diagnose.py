"""The whole diagnosis, its JSON, its text and its command."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from apportion.cli.diagnosis_screen import screen
from apportion.cli.diagnosis_text import diagnosis_text
from apportion.diagnosis import diagnose, given
from apportion.diagnosis.beliefs import RECORDED, coarse, foresight_of
from apportion.diagnosis.given import embedder_of, rates_of
from apportion.diagnosis.statements import waste_statements
from apportion.predictors import PrecomputedEmbeddings
from apportion.runs.json_text import plain
from tests.cases import refuse_lines
from tests.commands import refuse_all, refused
from tests.diagnosis.builders import record_of, run_of

RUN = Path(__file__).parents[2] / "examples" / "data" / "grpo_run.jsonl.gz"
MIXED = np.random.default_rng(0).beta(0.5, 0.5, 60)


def words_of(record, **settings):
    """Return the text of a diagnosis without line breaks."""
    return " ".join(diagnosis_text(diagnose(record, **settings)).split())


def numbers(value):
    """Yield all numbers within a JSON value."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def test_the_json_holds_every_number_of_the_advice():
    found = diagnose(run_of(np.where(np.arange(100) % 2, 0.5, 0), visits=6))
    told = json.loads(json.dumps(plain(found)))["advice"]
    assert told["recommended"]
    for each in told["recommended"]:
        held = {f"{number:.2f}" for number in numbers(each)} | {f"{number:.0%}" for number in numbers(each)}
        words = [word.strip("[],.") for word in each["text"].split()]
        figures = [word for word in words if word[:1].isdigit() and word not in ("9",)]
        assert figures and all(figure in held for figure in figures)


def test_json_has_no_number_that_is_not_finite():
    found = diagnose(record_of([[np.nan, np.nan], [1, np.nan]]))
    json.dumps(plain(found), allow_nan=False)


def test_a_notebook_shows_what_was_found_with_every_text_escaped():
    found = diagnose(run_of(np.where(np.arange(100) % 2, 0.5, 0), visits=6))
    told = replace(found, name="<b>")._repr_html_()
    assert "Diagnosis of &lt;b&gt;" in told and "<b>" not in told
    assert waste_statements(found.waste, found.phantoms)[0] in told and "<td>advice</td><td>1. " in told
    assert "nothing can be compared" in diagnose(record_of([[1.0], [np.nan]]))._repr_html_()


def test_the_recorded_belief_is_judged_beside_the_others():
    record = run_of(MIXED, visits=4)
    known = replace(record, predicted=MIXED[record.prompt])
    errors = {each.predictor: each.cells[-1].error.value for each in foresight_of(known).predictors}
    assert min(errors, key=errors.get) == RECORDED
    assert errors["empirical Bayes"] < errors["one half for all"] < errors["empirical Bayes, shuffled"]


def test_embeddings_and_rates_bring_their_predictors():
    record = run_of(MIXED, visits=2)
    embedder = PrecomputedEmbeddings(dict(zip(record.ids, MIXED[:, None] * np.ones(3), strict=True)))
    rates = dict(zip(record.ids, MIXED.tolist(), strict=True))
    first = {each.predictor: each.cells[0].error.value for each in foresight_of(record, embedder, rates).predictors}
    assert {"gp", "gp, noise 1", "empirical Bayes, embeddings, shuffled", "empirical Bayes, both"} < set(first)
    assert first["empirical Bayes, known rates"] < first["empirical Bayes"]


def test_rewards_beyond_one_have_no_foresight_and_say_so():
    record = run_of(MIXED, visits=2)
    assert "within 0 and 1" in foresight_of(replace(record, reward=3 * record.reward)).problem
    assert "30 groups" in foresight_of(record_of([[1, 0]])).problem


def test_very_many_steps_are_joined():
    batches = [np.array([i]) for i in range(2500)]
    joined = coarse(batches, 1000)
    assert len(joined) == 1000 and np.concatenate(joined).tolist() == list(range(2500))


def test_the_text_says_what_would_help_and_what_is_missing():
    text = words_of(run_of(MIXED, visits=6))
    said = "Advice|Dead groups|Tokens of dead groups: unknown|Drift|Foresight"
    assert all(words in text for words in said.split("|"))
    assert "Nothing here would help this run." in words_of(run_of(np.full(100, 0.5)))
    assert "No advice: advice needs 30 prompts" in words_of(record_of([[1, 0]]))
    shares = np.random.default_rng(0).random((40, 8))
    assert "tokens in dead" in words_of(record_of((shares > 0.5).astype(float), tokens=100 * shares.ravel()))


@pytest.mark.parametrize("doubts", [(), ("a long doubt " * 11,) * 3])
def test_the_first_screen_tells_the_first_change_and_how_many_it_leaves_out(doubts):
    found = diagnose(run_of(MIXED, visits=6))
    told, changes = screen(replace(found, doubts=doubts), True), len(found.advice.recommended)
    hidden = sum(f"\n{number}. " not in told for number in range(1, 1 + changes))
    assert "\n1. " in told and changes > 1 and hidden == max(0, changes - (1 if doubts else 2))
    assert (f"More: --full for {hidden} more change" in told) == (hidden > 0)


def test_the_text_ends_with_the_code_of_each_recommended_change():
    found = diagnose(run_of(MIXED, visits=6))
    text = diagnosis_text(found)
    last = text.split("\n\n")[-1]
    assert found.advice.recommended and last.startswith("What to change")
    for number, each in enumerate(found.advice.recommended, 1):
        assert f"{number}. {each.change}\n" in last
        code = " ".join(last.replace("\\\n", "").split())
        assert f" AllocatedGRPOTrainer(..., {each.code.trl}) " in code
        assert f" verl: python -m apportion.verl {each.code.verl} ..." in code
    written = plain(found)["advice"]["recommended"][0]["code"]
    assert written["trl"] == 'preset="fixed_baseline"'
    assert written["imports"] == ["from apportion.trl import AllocatedGRPOTrainer"]
    assert "What to change" not in diagnosis_text(diagnose(run_of(np.full(100, 0.5))))


def test_wrong_input_ends_with_one_line(tmp_path):
    small = tmp_path / "run.jsonl"
    small.write_text('{"id": "a", "prompt": "1 + 1 =", "correct_of_4": [1, 2]}\n')
    wrong = """
        --embeddings missing.npy => missing.npy
        --rates missing.json     => missing.json
    """
    refuse_all(wrong, "diagnose", small)
    refused("diagnose", tmp_path / "none")


def test_embeddings_come_from_files_and_are_checked(tmp_path):
    record = run_of(MIXED, visits=2)
    np.save(tmp_path / "rows.npy", np.eye(60))
    np.savez(tmp_path / "named.npz", embeddings=np.eye(60), ids=np.array(record.ids[::-1]))
    assert embedder_of(str(tmp_path / "rows.npy"), record)(record.prompts[:1]).tolist()[0][0] == 1
    assert embedder_of(str(tmp_path / "named.npz"), record)(record.prompts[:1]).tolist()[0][-1] == 1
    np.save(tmp_path / "short.npy", np.eye(3))
    np.savez(tmp_path / "other.npz", vectors=np.eye(60))
    np.savez(tmp_path / "some.npz", embeddings=np.eye(3), ids=np.array(["0", "1", "2"]))
    (tmp_path / "text.npy").write_text("no array")
    wrong = """
        short.npy => one row for each prompt
        other.npz => must hold embeddings
        some.npz  => none for '10'
        text.npy  => must be a .npy or .npz
    """
    refuse_lines(lambda name: embedder_of(str(tmp_path / name), record), wrong)
    with pytest.raises(ValueError, match="need the text of every prompt"):
        embedder_of("minilm", record)


def test_rates_come_from_an_object_or_from_lines(tmp_path):
    record = run_of(MIXED, visits=2)
    for name, text in (
        ("object.json", '{"0": 0.25, "other": 3}'),
        ("lines.jsonl", '{"id": "0", "rate": 0.25}\n{"id": "1", "rate": null}\n{"id": "2"}\n'),
    ):
        (tmp_path / name).write_text(text)
        assert rates_of(tmp_path / name, record) == {"0": 0.25}
    wrong = """
        {"0": 2}   => between 0 and 1
        {"0": "x"} => between 0 and 1
        [1]        => objects
        {"z": 0.5} => got none
        {          => must be JSON
    """

    def read(text):
        (tmp_path / "bad.json").write_text(text)
        rates_of(tmp_path / "bad.json", record)

    refuse_lines(read, wrong)
    assert len(rates_of(RUN, replace(record, ids=[str(q) for q in range(60)]))) > 30


def test_groups_of_one_reward_are_not_said_to_waste_nothing():
    text = diagnosis_text(diagnose(record_of([[1], [0], [1]])))
    assert "no group has two rewards or more" in text and "0 of 0" not in text and "0%" not in text


def test_a_file_of_embeddings_that_claims_more_than_it_has_is_refused(tmp_path, monkeypatch):
    """The header of an array of 3.6 PiB, and an archive that unpacks to more than is read."""
    shape = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 512), }".ljust(117) + b"\n"
    (tmp_path / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(shape).to_bytes(2, "little") + shape)
    record = run_of(np.full(4, 0.5))
    with pytest.raises(ValueError, match=r"must be a .npy or .npz file without objects"):
        embedder_of(str(tmp_path / "huge.npy"), record)
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("embeddings.npy", bytes(2**20))
    monkeypatch.setattr(given, "MOST_BYTES", 2**19)
    with pytest.raises(ValueError, match=r"must be a .npy or .npz file"):
        embedder_of(str(tmp_path / "bomb.npz"), record)
