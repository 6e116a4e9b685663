"""``train(..., on_row=...)``: a program that looks at a run while it goes on."""

import io
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console
from saved_runs import quiet

from accel_rl.cli.parse import parse_arguments
from accel_rl.config import TrainConfig
from accel_rl.runs.checkpoint import list_checkpoints
from accel_rl.runs.tables import read_rows
from accel_rl.stopping import OWN_CODE, StopRequest
from accel_rl.training.progress import summary
from accel_rl.training.train import RunError, train

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


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("algo", ["a2c", "ga3c"])
def test_true_ends_the_run_with_all_saved(tmp_path, algo: str, in_thread: bool) -> None:
    results = []

    def run() -> None:
        given = config(tmp_path, algo)
        results.append(train(given, quiet(), on_row=lambda row: row["steps"] >= 800))

    thread = threading.Thread(target=run)
    if in_thread:
        thread.start()
        thread.join(60.0)
    else:
        run()
    [result] = results
    assert result.is_cut and result.stopped_by is None
    [checkpoint] = list_checkpoints(result.run_dir)
    assert 800 <= int(checkpoint.stem.removeprefix("steps_")) < 2000
    assert (
        (result.run_dir / "train.log")
        .read_text()
        .rstrip()
        .endswith("ended by on_row or max_minutes")
    )


def test_true_of_the_last_row_cuts_nothing(tmp_path) -> None:
    result = train(config(tmp_path), quiet(), on_row=lambda row: row["steps"] >= 2000)
    assert not result.is_cut and result.status is not None and result.status.steps >= 2000


@pytest.mark.parametrize("options", [["algo=a2c"], ["algo=ga3c"], ["algo=a2c", "overlap=true"]])
def test_run_ends_after_max_minutes_and_goes_on(tmp_path, options: list[str]) -> None:
    small = [each for each in SMALL if "ga3c" not in options[0] or not each.startswith("serial")]
    run_dir, long = tmp_path / "run", ["total_steps=1e9", "max_minutes=0.02"]
    given = [each for each in small if not each.startswith("total")] + long
    result = train(parse_arguments([*options, *given, f"run_dir={run_dir}"]), quiet())
    assert result.is_cut and result.stopped_by is None and result.status is not None
    text = summary(result.status, run_dir, result.updates, None, result.is_cut)
    shown = io.StringIO()
    Console(file=shown, width=200).print(text)
    assert "ended after max_minutes" in shown.getvalue() and "resume=" in shown.getvalue()
    steps = result.status.steps
    for max_minutes in (0.01, 0.1, 1.0):  # On a busy machine the first seconds may see no update.
        more = train(parse_arguments([f"resume={run_dir}", f"max_minutes={max_minutes}"]), quiet())
        assert more.status is not None and more.status.steps >= steps
        if more.status.steps > steps:
            break
    else:
        pytest.fail("a resumed run made no step in a minute")


def test_learners_in_step_end_together_after_max_minutes() -> None:
    first, second = StopRequest(max_minutes=0.0), StopRequest()
    assert (first.code, second.code) == (OWN_CODE, 0)
    second.follow(first.code)
    assert second.is_own and second.received == signal.SIGTERM
    with pytest.raises(ValueError, match="max_minutes is 0"):
        parse_arguments(["max_minutes=0"])


def test_signal_that_comes_then_is_the_first() -> None:
    with StopRequest() as stop:
        stop.hold()
        stop.ask()
        assert stop.received == signal.SIGTERM and stop.is_own
        signal.raise_signal(signal.SIGINT)
        assert stop.received == signal.SIGINT and not stop.is_own


def test_what_it_raises_fails_the_run_with_all_saved(tmp_path) -> None:
    def fail(row: Mapping[str, float]) -> None:
        raise KeyError("loss")

    with pytest.raises(RunError, match="KeyError: 'loss'"):
        train(config(tmp_path), quiet(), on_row=fail)
    assert len(list_checkpoints(tmp_path / "run")) == 1
    assert "in fail" in (tmp_path / "run" / "train.log").read_text()
