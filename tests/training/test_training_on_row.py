"""``train(..., on_row=...)``: a program that looks at a run while it goes on."""

import io
import itertools
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console
from saved_runs import quiet, undrawn
from tiers import slow_processes

from accel_rl.cli.parse import parse_arguments
from accel_rl.config import TrainConfig
from accel_rl.envs.make import giving, name_for_configs
from accel_rl.runs.checkpoint import list_checkpoints
from accel_rl.runs.tables import read_rows
from accel_rl.system.stopping import OWN_CODE, StopRequest
from accel_rl.training.train import RunError, train

SMALL = ["env=catch", "model=mlp", "num_envs=4", "total_steps=400", "log_interval=80"]
GA3C = pytest.param("ga3c", marks=[pytest.mark.slow, pytest.mark.processes])


@pytest.fixture(autouse=True)
def no_curve() -> Iterator[None]:
    with undrawn():
        yield


def config(tmp_path: Path, algo: str = "a2c") -> TrainConfig:
    small = [*SMALL, *["num_workers=0"] * (algo != "ga3c")]
    return parse_arguments([f"algo={algo}", *small, f"run_dir={tmp_path / 'run'}"])


@pytest.mark.parametrize("algo", ["a2c", GA3C])
def test_each_row_is_given_as_the_file_has_it(tmp_path, algo: str) -> None:
    given: list[dict[str, float]] = []
    result = train(config(tmp_path, algo), quiet(), on_row=lambda row: given.append(dict(row)))
    rows = read_rows(result.run_dir / "metrics.csv")
    assert len(rows) == len(given) >= 2
    for row, seen in zip(rows, given, strict=True):
        assert list(row) == list(seen)
        assert row == pytest.approx(seen, rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("algo", ["a2c", GA3C])
def test_true_ends_the_run_with_all_saved(tmp_path, algo: str) -> None:
    """A2C's in a thread of the program."""
    results = []

    def run() -> None:
        given = config(tmp_path, algo)
        results.append(train(given, quiet(), on_row=lambda row: row["steps"] >= 160))

    thread = threading.Thread(target=run)
    if algo == "a2c":
        thread.start()
        thread.join(60.0)
    else:
        run()
    [result] = results
    assert result.is_cut and result.stopped_by is None
    [checkpoint] = list_checkpoints(result.run_dir)
    assert 160 <= int(checkpoint.stem.removeprefix("steps_")) < 400
    log = (result.run_dir / "train.log").read_text()
    assert log.rstrip().endswith("ended by on_row or max_minutes")


class Stages(gymnasium.Env[np.ndarray, int]):
    """Episodes of three steps, whose only number is the stage that the reset was told."""

    observation_space = spaces.Box(-10.0, 10.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.stage = 3, np.full(1, (options or {}).get("stage", 0.0), np.float32)
        return self.stage, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.stage, float(self.stage[0]), self.left == 0, False, {}


@pytest.mark.parametrize(
    "options",
    ["num_workers=0", "num_workers=0 overlap=true", slow_processes("num_workers=2")],
)
def test_mapping_is_the_options_of_all_later_resets(tmp_path, options: str) -> None:
    rows = []

    def next_stage(row: Mapping[str, float]) -> dict[str, float] | None:
        rows.append((row["steps"], row["episode_return_raw_mean"]))
        return {"stage": 5.0} if len(rows) == 1 else None

    with giving(name := name_for_configs(Stages), Stages):
        small = [each for each in SMALL if not each.startswith(("env=", "total_steps="))]
        given = [f"env={name}", "algo=a2c", *small, *options.split(), f"run_dir={tmp_path / 'run'}"]
        train(
            parse_arguments([*given, "total_steps=800", "horizon=20"]), quiet(), on_row=next_stage
        )
    assert rows[0][1] == 0.0  # of the last 100 episodes
    assert rows[-1][1] == 15.0


@pytest.mark.parametrize(
    ("options", "message"),
    [(["algo=a2c"], "takes no options"), slow_processes(["algo=ga3c"], "use one learner")],
)
def test_mapping_fails_where_resets_take_no_options(tmp_path, options, message) -> None:
    with pytest.raises(RunError, match=message):
        train(config(tmp_path, options[0].removeprefix("algo=")), quiet(), on_row=lambda row: {})


def test_true_of_the_last_row_cuts_nothing(tmp_path) -> None:
    result = train(config(tmp_path), quiet(), on_row=lambda row: row["steps"] >= 400)
    assert not result.is_cut and result.status is not None and result.status.steps == 400


@pytest.mark.slow
@pytest.mark.parametrize("options", ["algo=a2c overlap=true", "algo=a2c"])
def test_run_ends_after_max_minutes_and_goes_on(tmp_path, options: str, monkeypatch) -> None:
    seconds = itertools.count()  # one for each look at the clock
    monkeypatch.setattr("accel_rl.system.stopping.monotonic", lambda: float(next(seconds)))
    small = [each for each in SMALL if not each.startswith("total")]
    given = [*options.split(), *small, "total_steps=200", "num_workers=0"]
    given.append(f"run_dir={tmp_path / 'run'}")
    result = train(parse_arguments([*given, "max_minutes=0.08"]), quiet())
    assert result.is_cut and result.stopped_by is None and result.status is not None
    assert 0 < result.status.steps < 200
    whole = train(parse_arguments([f"resume={tmp_path / 'run'}", "max_minutes=none"]), quiet())
    assert not whole.is_cut and whole.status is not None and whole.status.steps == 200


@pytest.mark.parametrize(
    "options", [["algo=a2c"], slow_processes(["num_workers=none"]), slow_processes(["algo=ga3c"])]
)
def test_max_minutes_hold_in_the_random_first_steps_which_are_told(
    options: list[str], tmp_path, monkeypatch
) -> None:
    def now() -> float:
        return 1e9 if "random first" in shown.getvalue() else 0.0

    monkeypatch.setattr("accel_rl.system.stopping.monotonic", now)
    monkeypatch.setattr("accel_rl.training.progress.PlainLines.interval_seconds", 0.0)
    monkeypatch.setattr("accel_rl.samplers.local_pool.LOOK_SECONDS", 0.0)
    shown, run_dir = io.StringIO(), tmp_path / "run"
    given = ["env=catch", "num_envs=4", "decorrelation_steps=1e6", "total_steps=40"]
    given += ["num_workers=0"] if options == ["algo=a2c"] else []
    config = parse_arguments([*given, *options, "max_minutes=1", f"run_dir={run_dir}"])
    with undrawn():
        result = train(config, Console(file=shown, width=200))
    assert result.is_cut and result.stopped_by is None and result.updates == 0
    assert re.search(r"random first steps: [\d,]+ of about 2,000,000\n", shown.getvalue())
    assert len(list_checkpoints(run_dir)) == 1


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


def test_signal_counts_again_within_a_second_after_somebody_else_took_it(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("accel_rl.system.stopping.monotonic", lambda: now[0])
    with StopRequest() as stop:
        stop.hold()
        assert not stop.is_asked()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        now[0] = 1.0
        assert not stop.is_asked()
        signal.raise_signal(signal.SIGINT)
        assert stop.is_asked() and stop.received == signal.SIGINT


def test_what_it_raises_fails_the_run_with_all_saved(tmp_path) -> None:
    def fail(row: Mapping[str, float]) -> None:
        raise KeyError("loss")

    with pytest.raises(RunError, match="KeyError: 'loss'"):
        train(config(tmp_path), quiet(), on_row=fail)
    assert len(list_checkpoints(tmp_path / "run")) == 1
    assert "in fail" in (tmp_path / "run" / "train.log").read_text()
