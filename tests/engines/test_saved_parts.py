"""Checkpoints that share their large parts: each complete by itself, small, and refused when a byte is wrong."""

import os
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from apportion.engines import saved_parts
from apportion.engines.saved_parts import SharedParts, load_with_parts
from apportion.engines.saved_state import SavedStateError, load_state, save_state
from tests.hostile import FILES, MARKER

KIND, REMEDY = "test run", "delete it"


@dataclass(frozen=True, eq=False)
class Answer:
    """A part if it has ``ids``."""

    name: str
    ids: np.ndarray | None = None


def is_part(value):
    return isinstance(value, Answer) and value.ids is not None


def answer(number, size=1000):
    return Answer(f"answer {number}", np.random.default_rng(number).integers(0, 1000, size).astype(np.int32))


def loaded(path):
    return load_with_parts(path, KIND, remedy=REMEDY, records=(Answer,))


def checkpoint(folder, step, answers, shared, **more):
    path = folder / f"step_{step}" / "state.pt"
    path.parent.mkdir(exist_ok=True)
    shared.save(path, KIND, {"answers": list(answers), **more})
    return path


def check(path, answers):
    found = loaded(path)["answers"]
    assert [each.name for each in found] == [each.name for each in answers]
    for mine, other in zip(found, answers, strict=True):
        assert (mine.ids is None) == (other.ids is None)
        assert mine.ids is None or (mine.ids.dtype == other.ids.dtype and mine.ids.tolist() == other.ids.tolist())


def parts_of(path):
    return sorted(path.parent.glob("*.parts"))


def bytes_under(folder):
    return sum({file.stat().st_ino: file.stat().st_size for file in folder.rglob("*") if file.is_file()}.values())


def test_a_state_comes_back_with_its_parts(tmp_path):
    for answers in ([], [Answer("none")], [answer(1), Answer("none"), answer(2)]):
        path = checkpoint(tmp_path, 1, answers, SharedParts(is_part), other=(1, b"x"), tensor=torch.arange(3))
        check(path, answers)
        found = loaded(path)
        assert found["other"] == (1, b"x") and found["tensor"].tolist() == [0, 1, 2]
        assert len(parts_of(path)) == any(each.ids is not None for each in answers)


def test_a_part_that_is_in_a_state_twice_is_saved_once_and_is_one_object_again(tmp_path):
    one = answer(1)
    path = checkpoint(tmp_path, 1, [one, one, answer(1)], SharedParts(is_part))
    first, second, third = loaded(path)["answers"]
    assert first is second is third
    assert parts_of(path)[0].stat().st_size < 2 * one.ids.nbytes


def test_only_new_parts_are_written_and_every_folder_is_complete_by_itself(tmp_path):
    shared, answers, paths = SharedParts(is_part), [answer(i) for i in range(20)], []
    for step in range(12):
        before = bytes_under(tmp_path)
        paths.append((checkpoint(tmp_path, step, answers, shared), list(answers)))
        if step:
            assert bytes_under(tmp_path) - before < 14_000 + 2 * 4000 * 2 ** step.bit_length()
        answers = [*answers, answer(100 + step)]
    assert len(parts_of(paths[-1][0])) <= 6
    for path, expected in paths:
        alone = tmp_path / "alone"
        shutil.copytree(path.parent, alone)
        check(alone / path.name, expected)
        shutil.rmtree(alone)


def test_older_folders_may_be_deleted_at_any_time(tmp_path):
    shared, answers = SharedParts(is_part), [answer(i) for i in range(5)]
    for step in range(6):
        answers = [*answers, answer(100 + step)]
        path = checkpoint(tmp_path, step, answers, shared)
        if step % 2:
            shutil.rmtree(tmp_path / f"step_{step - 1}")
        if step == 3:
            shutil.rmtree(path.parent)
    check(path, answers)


def test_what_is_no_longer_in_use_is_left_behind(tmp_path):
    shared = SharedParts(is_part)
    for step in range(40):
        answers = [answer(i) for i in range(step, step + 10)]
        path = checkpoint(tmp_path, step, answers, shared)
        check(path, answers)
        assert sum(file.stat().st_size for file in parts_of(path)) <= 2 * 10 * 4600
        assert len(parts_of(path)) <= 6
    path = checkpoint(tmp_path, 40, answers[:4], shared)  # less than half of what its files hold
    assert sum(file.stat().st_size for file in parts_of(path)) <= 4 * 4600
    check(checkpoint(tmp_path, 40, [], shared), [])
    assert not parts_of(tmp_path / "step_40" / "state.pt")


def test_parts_are_written_again_where_hard_links_fail_and_where_a_file_has_changed(tmp_path, monkeypatch):
    def refuse(*args, **named):
        raise OSError(18, "Invalid cross-device link")

    shared, answers = SharedParts(is_part), [answer(i) for i in range(5)]
    first = checkpoint(tmp_path, 0, answers, shared)
    with parts_of(first)[0].open("ab") as file:
        file.write(b"more")
    check(checkpoint(tmp_path, 1, answers, shared), answers)
    monkeypatch.setattr(os, "link", refuse)
    path = checkpoint(tmp_path, 2, answers, shared)
    check(path, answers)
    assert not [file for file in path.parent.iterdir() if file.name.startswith(".")]
    assert {file.stat().st_nlink for file in parts_of(path)} == {1}


def test_files_are_linked_and_no_larger_than_their_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_parts, "FILE_BYTES", 10_000)
    shared, answers = SharedParts(is_part), [answer(i) for i in range(9)]
    checkpoint(tmp_path, 1, answers, shared)
    path = checkpoint(tmp_path, 2, answers, shared)
    check(path, answers)
    assert len(parts_of(path)) == 5 and max(file.stat().st_size for file in parts_of(path)) <= 10_000
    assert {file.stat().st_nlink for file in parts_of(path)} == {2}


def test_saving_to_the_same_folder_again_leaves_no_file_of_the_earlier_state(tmp_path):
    shared = SharedParts(is_part)
    checkpoint(tmp_path, 1, [answer(i) for i in range(4)], shared)
    for answers in ([answer(i) for i in range(4)], [answer(9)]):
        path = checkpoint(tmp_path, 1, answers, shared)
        check(path, answers)
        assert len(parts_of(path)) == 1
    other = checkpoint(tmp_path, 1, [answer(7)], SharedParts(is_part))
    check(other, [answer(7)])
    assert len(parts_of(other)) == 1


def test_a_resumed_run_uses_the_files_of_its_checkpoint_again(tmp_path):
    path = checkpoint(tmp_path, 1, [answer(i) for i in range(20)], SharedParts(is_part))
    resumed, before = SharedParts(is_part), bytes_under(tmp_path)
    assert resumed.adopt(path, KIND)
    later = checkpoint(tmp_path, 2, loaded(path)["answers"], resumed)
    assert bytes_under(tmp_path) - before < 5000
    assert later.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("fault", ["garbled", "swapped", "removed", "a folder"])
def test_a_damaged_file_of_parts_is_refused_and_is_not_used_again(tmp_path, fault):
    answers = [answer(i) for i in range(3)]
    path = checkpoint(tmp_path, 1, answers, SharedParts(is_part))
    (file,) = parts_of(path)
    content = file.read_bytes()
    file.unlink()
    if fault == "a folder":
        file.mkdir()
    elif fault == "garbled":
        file.write_bytes(content[:5000] + b"?" + content[5001:])
    elif fault == "swapped":
        file.write_bytes(content[len(content) // 3 :] + content[: len(content) // 3])
    with pytest.raises(SavedStateError, match=r"step_1/state\.pt: .*parts.*; delete it$"):
        loaded(path)
    resumed = SharedParts(is_part)
    assert resumed.adopt(path, KIND)
    check(checkpoint(tmp_path, 2, answers, resumed), answers)


def test_every_byte_of_both_files_counts(tmp_path):
    path = checkpoint(tmp_path, 1, [answer(1, size=20), answer(2, size=20)], SharedParts(is_part))
    for file in (path, *parts_of(path)):
        content = file.read_bytes()
        for place in range(0, len(content), 7):
            for wrong in (content[:place], content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]):
                file.write_bytes(wrong)
                with pytest.raises(SavedStateError, match=r"^\S*state\.pt: .*; delete it$"):
                    loaded(path)
        file.write_bytes(content)
    check(path, [answer(1, size=20), answer(2, size=20)])


def test_a_foreign_file_is_refused_and_runs_no_code(tmp_path):
    path = checkpoint(tmp_path, 1, [answer(1)], SharedParts(is_part))
    for name in FILES:
        for file in (*parts_of(path), path):
            before = file.read_bytes()
            file.write_bytes(FILES[name](tmp_path / MARKER))
            with pytest.raises(SavedStateError):
                loaded(path)
            assert file != path or not SharedParts(is_part).adopt(path, KIND)
            file.write_bytes(before)
    assert not (tmp_path / MARKER).exists()


def test_a_state_names_no_file_elsewhere(tmp_path):
    path = tmp_path / "state.pt"
    for name in ("../other/state.0123456789abcdef.parts", "/etc/passwd", "state.pt", "x" * 500):
        path.write_bytes(saved_parts.pack(KIND, {"part": "ab"}, [], {name: {"ab": 3}}))
        with pytest.raises(SavedStateError, match="a file of parts must have its own kind of name"):
            loaded(path)


def test_a_part_that_no_file_has_is_refused(tmp_path):
    path = tmp_path / "state.pt"
    path.write_bytes(saved_parts.pack(KIND, {"part": "ab"}, []))
    with pytest.raises(SavedStateError, match="no file has the part 'ab'"):
        loaded(path)
    with pytest.raises(SavedStateError, match="an object must say what it is, got 'part'"):
        load_state(path, KIND, remedy=REMEDY)


def test_a_state_without_parts_is_that_of_save_state(tmp_path):
    save_state(tmp_path / "plain.pt", KIND, {"a": [1, np.arange(2)]})
    assert loaded(tmp_path / "plain.pt")["a"][1].tolist() == [0, 1]
    SharedParts(is_part).save(tmp_path / "shared.pt", KIND, {"a": [1, np.arange(2)]})
    assert (tmp_path / "shared.pt").read_bytes() == (tmp_path / "plain.pt").read_bytes()
