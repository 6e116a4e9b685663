"""``tune=true`` on a GPU: two samplers' memory is registered at a time, and all of it released."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.saved import read_config
from accel_rl.training import engine_trial
from accel_rl.training.train import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_trial_and_run_follow_each_other_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_trial, "SECONDS", 5.0)
    monkeypatch.setattr(engine_trial, "WINDOW_SECONDS", 0.05)
    shown = io.StringIO()
    arguments = ["env=catch", "num_envs=8", "total_steps=400", "tune=true", "device=cuda"]
    config = parse_arguments([*arguments, f"run_dir={tmp_path / 'run'}"])
    result = train(config, Console(file=shown, width=200))
    assert result.status is not None and result.status.steps == 400
    assert shown.getvalue().count("against") > 0
    assert not read_config(tmp_path / "run").tune
