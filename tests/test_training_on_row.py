"""``train(..., on_row=...)``: a program that looks at a run while it goes on."""

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from saved_runs import quiet

from accel_rl.config import TrainConfig
from accel_rl.training.checkpoint import list_checkpoints
from accel_rl.training.command_line import parse_arguments
from accel_rl.training.loop import RunError, train
from accel_rl.training.metrics import read_rows

SMALL = [
    "env=catch",
    "model=mlp",
    "serial=true",
    "num_envs=4",
    "total_steps=2000",
    "log_interval=400",
]


def config(tmp_path: Path, algo: str = "a2c") -> TrainConfig:
    small = [each for each in SMALL if algo != "ga3c" or not each.startswith("serial")]
    return parse_arguments([f"algo={algo}", *small, f"run_dir={tmp_path / 'run'}"])


@pytest.mark.parametrize("algo", ["a2c", "ga3c"])
def test_each_row_is_given_as_the_file_has_it(tmp_path, algo: str) -> None:
    given: list[dict[str, float]] = []
    result = train(config(tmp_path, algo), quiet(), on_row=lambda row: given.append(dict(row)))
    rows = read_rows(result.run_dir / "metrics.csv")
    assert len(rows) == len(given) >= 4
    for row, seen in zip(rows, given, strict=True):
        assert list(row) == list(seen)
        assert row == pytest.approx(seen, rel=1e-6, nan_ok=True)


def test_a_signal_raised_in_it_ends_the_run_with_all_saved(tmp_path) -> None:
    def stop(row: Mapping[str, float]) -> None:
        if row["steps"] >= 800:
            signal.raise_signal(signal.SIGINT)

    result = train(config(tmp_path), quiet(), on_row=stop)
    assert result.stopped_by == signal.SIGINT
    [checkpoint] = list_checkpoints(result.run_dir)
    assert 800 <= int(checkpoint.stem.removeprefix("steps_")) < 1200


def test_what_it_raises_fails_the_run_with_all_saved(tmp_path) -> None:
    def fail(row: Mapping[str, float]) -> None:
        raise KeyError("loss")

    with pytest.raises(RunError, match="KeyError: 'loss'"):
        train(config(tmp_path), quiet(), on_row=fail)
    assert len(list_checkpoints(tmp_path / "run")) == 1
    assert "in fail" in (tmp_path / "run" / "train.log").read_text()
