"""Runs of fakes, which note on a tape what happens in which order."""

import io
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from saved_runs import undrawn

from accel_rl.config import TrainConfig
from accel_rl.envs import EnvSpec
from accel_rl.parallel import FlatParameters
from accel_rl.samplers import Episode, SamplerConfig, SamplerTimes
from accel_rl.spaces import discrete
from accel_rl.system.stopping import StopRequest
from accel_rl.training.progress import PlainLines
from accel_rl.training.records import Records
from accel_rl.training.rollouts import RolloutRun
from accel_rl.training.run import ALONE

CPU = torch.device("cpu")


class Tape(list[str]):
    """Everything that happens, in order."""


class FakeSampler:
    times = SamplerTimes(0.0, 0.0, 0.0)
    config = SamplerConfig(num_envs=2, horizon=2)
    env_spec = EnvSpec(name="taped", observation=discrete(2), action=discrete(2))
    rollout = SimpleNamespace(action=None, valid=None)

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def collect(self, policy: Any) -> None:
        self.tape.append("collect")

    def take_episodes(self) -> list[Episode]:
        self.tape.append("episodes")
        return [Episode(0, 3.0, 1.0, 7, False)]


class FakeServer:
    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def finish(self) -> str:
        self.tape.append("finish")
        return "batch"


class FakeLearner:
    def __init__(self, tape: Tape, loss: float = 0.5, on_update: Any = lambda: None) -> None:
        self.tape, self.loss, self.on_update = tape, loss, on_update

    def update(self, batch: str, progress: float, steps: int) -> dict[str, torch.Tensor]:
        assert batch == "batch"
        self.tape.append(f"update {progress:.2f}")
        self.on_update()
        return {"loss": torch.tensor(self.loss)}


class FakeSync:
    """Its learner is on its own, and counts updates."""

    num_sharing, num_updates = 1, 0
    parameters = FlatParameters(torch.nn.Linear(1, 1))

    def take_metrics(self) -> dict[str, float]:
        return {}


class FakeEvaluator:
    others: Mapping[str, Any] = {}

    def __init__(self, tape: Tape, interval: int) -> None:
        self.tape, self.interval, self.last = tape, interval, 0

    def is_due(self, steps: int) -> bool:
        is_due, self.last = steps // self.interval > self.last // self.interval, steps
        return is_due

    def evaluate(self, steps: int, stop: StopRequest) -> dict[str, float]:
        self.tape.append("evaluate")
        return {"episodes": 1, "episode_return_raw_mean": 9.0}


class TapedRecords(Records):
    tape: Tape

    def write_row(self, *, alone: bool = False) -> None:
        self.tape.append(f"row {self.steps}")
        super().write_row(alone=alone)

    def save(self, due: int | None) -> None:
        self.tape.append(f"save {self.steps}")
        super().save(due)

    def draw_curve(self, *, is_last: bool = False) -> bool:
        self.tape.append(f"curve {self.steps}")
        with undrawn():
            return super().draw_curve(is_last=is_last)


def make_config(**changes: Any) -> TrainConfig:
    values: dict = {
        "total_steps": 20,
        "log_interval": 10,
        "checkpoint_interval": 10,
        "sampler": SamplerConfig(num_envs=2, horizon=2),
    }
    return TrainConfig(**(values | changes))


def make_records(config: TrainConfig, run_dir: Path, tape: Tape) -> TapedRecords:
    def make_state() -> dict[str, Any]:
        return {"learner": {"parameters": {"weight": torch.ones(2)}}, "algorithm": {}}

    sync: Any = FakeSync()
    lines = PlainLines(Console(file=io.StringIO()))
    parts = config, run_dir, ALONE, sync, make_state, lines
    records = TapedRecords(*parts, metric_names=("loss", "policy_lag"), frame_skip=4)
    records.tape = tape
    records.begin(FakeSampler.times)
    return records


def make_run(config: TrainConfig, run_dir: Path, tape: Tape, **changes: Any) -> RolloutRun:
    """A run of fakes. ``changes``: parts in place of those."""
    parts: dict = {
        "sampler": FakeSampler(tape),
        "server": FakeServer(tape),
        "learner": FakeLearner(tape),
        "evaluator": None,
        "agent": None,
    }
    stop = changes.pop("stop", StopRequest())
    parts |= changes
    records = make_records(config, run_dir, tape)
    sync = records._sync
    run = RolloutRun(config=config, team=ALONE, device=CPU, sync=sync, **parts)
    run.run_dir, run.records, run.stop = run_dir, records, stop
    learner = run.overlapped or run.learner
    update = learner.update

    def update_and_count(*arguments: Any) -> Any:
        metrics = update(*arguments)
        sync.num_updates += 1
        return metrics

    learner.update = update_and_count  # type: ignore[method-assign]
    return run
