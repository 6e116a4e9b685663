"""What the user's own code does to a run: it never ends one quietly, and messages name its line."""

import sys
from pathlib import Path

import pytest

from accel_rl.__main__ import main
from accel_rl.runs.checkpoint import list_checkpoints

SMALL = ["num_workers=0", "num_envs=2", "decorrelation_steps=0", "log_interval=40"]

LATE = """\
import sys

import numpy as np
import torch
from torch import nn

calls = 0
limit = 60  # later than what is tried before a run


class Late(nn.Module):
    def __init__(self, observation_shape, num_actions):
        super().__init__()
        self.size = int(np.prod(observation_shape))
        self.policy = nn.Linear(self.size, num_actions)
        self.value = nn.Linear(self.size, 1)

    def forward(self, observation):
        global calls
        calls += 1
        if calls > limit and not torch.is_grad_enabled():  # not within an update
            {failure}
        x = observation.flatten(1).float()
        return self.policy(x), self.value(x).squeeze(1)
"""


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a network that ``request.param`` ends after some calls."""
    (tmp_path / "late_network.py").write_text(LATE.replace("{failure}", request.param))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "late_network", raising=False)
    return "late_network:Late"


LINE = 1 + LATE[: LATE.index("{failure}")].count("\n")
FAILURES = {
    "sys.exit(0)": "sys.exit(0)",
    "self.policy(observation.new_zeros(1, 999))": "RuntimeError: ",
}


@pytest.mark.parametrize(("late", "said"), FAILURES.items(), indirect=["late"])
@pytest.mark.parametrize(
    "algo", ["a2c", pytest.param("ga3c", marks=[pytest.mark.slow, pytest.mark.processes])]
)
def test_network_that_fails_in_a_run_is_named_and_the_run_is_saved(
    algo: str, late: str, said: str, tmp_path: Path, capsys
) -> None:
    run_dir = tmp_path / "run"
    options = [f"algo={algo}", "env=catch", f"model={late}", f"run_dir={run_dir}"]
    small = SMALL if algo == "a2c" else ["decorrelation_steps=0", "num_envs=2", "num_groups=2"]
    assert main(["train", *options, "total_steps=20000", *small]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {said}")
    assert f"late_network.py, line {LINE}, in forward)" in err
    assert algo == "ga3c" or list_checkpoints(run_dir)


@pytest.mark.slow
@pytest.mark.parametrize(("late", "said"), FAILURES.items(), indirect=["late"])
def test_network_that_fails_in_an_evaluation_is_named(
    late: str, said: str, tmp_path: Path, capsys
) -> None:
    run_dir = tmp_path / "run"
    options = ["env=catch", f"model={late}", f"run_dir={run_dir}", "total_steps=40"]
    assert main(["train", *options, *SMALL]) == 0
    sys.modules["late_network"].calls = 20
    assert main(["evaluate", str(run_dir), "num_workers=0", "num_steps=2000"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {said}")
    assert f"late_network.py, line {LINE}, in forward)" in err
