"""A saved state comes back bit for bit; any other file is refused in one line, without running code."""

import json
from hashlib import sha256

import numpy as np
import pytest
import safetensors.torch
import torch

from apportion.engines.saved_state import CHECKSUM_BYTES, SavedStateError, load_state, restoring, save_state
from apportion.types import Batch, Belief, Prompt, Rollout
from tests.cases import check_all, lines
from tests.hostile import FILES, MARKER

REMEDY = "delete it"


def rewritten(path, change):
    """Write the file at ``path`` again with its JSON changed. Its checksum is right, as in a file that was forged."""
    found = safetensors.torch.load(path.read_bytes()[:-CHECKSUM_BYTES])
    head = json.loads(found.pop("apportion").numpy().tobytes())
    change(head)
    content = torch.frombuffer(bytearray(json.dumps(head).encode()), dtype=torch.uint8)
    written = safetensors.torch.save({"apportion": content} | found)
    path.write_bytes(written + sha256(written).digest())


@pytest.mark.parametrize(
    "state",
    [
        None,
        {"a": [1, -2.5, True, None, "text\n\u2028", b"\x00\xff", (1, (2,)), [], {}, ()]},
        {0: "number", (1, "x"): "tuple", "dict": "key named like a kind", "tensor": 0},
        [0.1 + 0.2, 5e-324, -0.0, float("inf"), float("nan"), 2**200, -(2**64)],
        {"noise": np.random.default_rng(3).bit_generator.state},
        [
            np.zeros((0, 3)),
            np.array(2.5),
            np.arange(6, dtype=np.int32).reshape(2, 3),
            np.array([True]),
            np.float32(0.1),
            np.uint64(2**64 - 1),
        ],
        [np.arange(6.0).reshape(2, 3).T, np.arange(9)[::2], np.array([np.nan, -0.0, np.inf])],
        [torch.arange(6.0).reshape(2, 3).T, torch.tensor(3), torch.zeros(0, 2, dtype=torch.float64)],
        [(whole := torch.arange(8).to(torch.bfloat16)), whole[2:4], whole],
        {"random": torch.Generator().manual_seed(5).get_state()},
    ],
)
def test_plain_data_comes_back_exactly(tmp_path, state):
    """Types, shapes and values are written the same, and the same file comes of what was read."""
    for name in ("state", "again"):
        save_state(tmp_path / name, "test", state)
        before, state = repr(state), load_state(tmp_path / name, "test", remedy=REMEDY)
        assert repr(state) == before
    assert (tmp_path / "again").read_bytes() == (tmp_path / "state").read_bytes()


def test_a_file_names_types_and_not_tensors_because_the_format_has_room_for_a_million_names(tmp_path):
    save_state(tmp_path / "state", "test", [np.arange(number) for number in range(50)] + [torch.ones(2)] * 50)
    found = safetensors.torch.load((tmp_path / "state").read_bytes()[:-CHECKSUM_BYTES])
    assert sorted(found) == ["apportion", "torch.float32", "torch.int64"]


def test_dataclasses_come_back_if_the_reader_names_them(tmp_path):
    batch = Batch.start([Prompt("a"), Prompt("b", data=(1, 2))], Belief.uniform(2))
    save_state(tmp_path / "state", "test", [batch, Rollout(True, "4", tokens=3)])
    records = (Batch, Belief, Prompt, Rollout)
    assert load_state(tmp_path / "state", "test", remedy=REMEDY, records=records) == [
        batch,
        Rollout(True, "4", tokens=3),
    ]
    with pytest.raises(SavedStateError, match=r"a record must be one of Prompt, Belief, got 'Batch'.*; delete it"):
        load_state(tmp_path / "state", "test", remedy=REMEDY, records=(Prompt, Belief))


def test_what_is_no_plain_data_is_not_written(tmp_path):
    for value in (object(), {1, 2}, np.array(["a"]), np.array([None]), lambda: None, Rollout):
        with pytest.raises(TypeError):
            save_state(tmp_path / "state", "test", [value])
    assert not (tmp_path / "state").exists()


def test_a_foreign_file_is_refused_in_one_line_and_runs_no_code(tmp_path):
    path = tmp_path / "state"
    for name in FILES:
        path.write_bytes(FILES[name](tmp_path / MARKER))
        with pytest.raises(SavedStateError) as caught:
            load_state(path, "lab run", remedy="delete the folder")
        said = str(caught.value)
        assert said.startswith(f"{path}: the file must be the saved state of a lab run, got "), name
        assert said.endswith("; delete the folder") and "\n" not in said
    assert not (tmp_path / MARKER).exists()


def test_a_file_cut_anywhere_or_changed_in_one_bit_is_refused(tmp_path):
    path = tmp_path / "state"
    save_state(path, "test", {"a": torch.arange(4), "b": [1, "text"]})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(SavedStateError):
            load_state(path, "test", remedy=REMEDY)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(SavedStateError, match="damaged or of something else"):
            load_state(path, "test", remedy=REMEDY)


FORGED = """
    {"kind": "TRL run"}       => got that of a 'TRL run'
    {"kind": ["test"]}        => got that of a
    {"version": 1}            => of version 2, got version 1
    {"version": null}         => of version 2, got version None
    {"state": {"eval": "1"}}  => an object must say what it is, got 'eval'
    {"state": {"record": ["Path", {"dict": []}]}} => a record must be one of none, got 'Path'
    {"state": {"tensor": 7}}  => got one that is damaged
    {"state": {"part": "ab"}} => got one that is damaged
    {"state": [{"tensor": 0}, {"tensor": 0}]} => got one that is damaged
    {"state": {"dict": [[[1], 2]]}} => got one that is damaged
    {"state": {"dict": [[1]]}} => got one that is damaged
    {"state": {"bytes": "no hex"}} => got one that is damaged
    {"state": {}}             => got one that is damaged
    {"shapes": [["torch.int64", [4]]]} => got a file that is damaged
    {"shapes": [["torch.int8", [3]]]} => got a file that is damaged
    {"shapes": 3}             => got a file that is damaged
    {}                        => got a file that is damaged or of something else
"""


def test_a_forged_head_is_refused(tmp_path):
    path = tmp_path / "state"

    def check(head, problem):
        save_state(path, "test", torch.arange(3))
        own = json.loads(head)
        rewritten(path, lambda head: head.update(own) if own else head.pop("state"))
        with pytest.raises(SavedStateError, match=problem) as caught:
            load_state(path, "test", remedy=REMEDY)
        assert "\n" not in str(caught.value)

    check_all(check, lines(FORGED))


def test_an_error_while_restoring_names_the_file_and_the_remedy(tmp_path):
    with (
        pytest.raises(SavedStateError, match=r"^state: window must be 8,\s?got 4; delete it$"),
        restoring(tmp_path.__class__("state"), REMEDY),
    ):
        raise ValueError("window must be 8,\n got 4")
