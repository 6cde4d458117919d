import os
import pickle

import numpy as np
import pytest

from gdpa import GDPA, MaxSteps, load_state, save_state, solve
from gdpa.problems import get


@pytest.fixture
def state():
    own = get("HS43")
    return solve(own.problem, own.x0, GDPA(), stop=MaxSteps(10)).state


def test_what_is_saved_is_what_is_loaded(state, tmp_path):
    save_state(tmp_path / "state", state)
    back = load_state(str(tmp_path / "state"))
    assert type(back) is type(state)
    assert back.step == 10
    assert back.x.tobytes() == state.x.tobytes()
    assert back.multipliers.tobytes() == state.multipliers.tobytes()
    assert back.evaluation is None
    assert os.listdir(tmp_path) == ["state"]


def test_a_failed_write_leaves_the_old_file_whole(state, tmp_path, monkeypatch):
    save_state(tmp_path / "state", state)
    before = (tmp_path / "state").read_bytes()

    def full(*args):
        raise OSError("no space left")

    monkeypatch.setattr(pickle, "dump", full)
    with pytest.raises(OSError, match="no space left"):
        save_state(tmp_path / "state", state)
    assert (tmp_path / "state").read_bytes() == before
    assert os.listdir(tmp_path) == ["state"]


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "other"
    path.write_bytes(pickle.dumps({"x": np.zeros(2)}))
    with pytest.raises(ValueError, match=r"other does not hold a state of gdpa but dict"):
        load_state(path)
    with pytest.raises(FileNotFoundError):
        load_state(tmp_path / "nothing")
