"""``tune=true``: the search goes where it should, and a run learns as if it had been told."""

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from accel_rl.cli.parse import parse_arguments
from accel_rl.parallel import FlatParameters, Local, Ranks, Team
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint
from accel_rl.runs.saved import read_config
from accel_rl.samplers import SamplerConfig, SamplerError
from accel_rl.samplers.layout import plan_workers
from accel_rl.topology import Core, Machine, available_cpus
from accel_rl.training import engine_trial
from accel_rl.training.build import build
from accel_rl.training.engine_trial import Layout, choose, neighbours
from accel_rl.training.train import train

NUM_ENVS, NUM_CORES = 32, 4


class Workshop:
    """Makes fakes whose speed is known, and whose windows take a second of a clock of its own."""

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        self.noise, self.rng = noise, np.random.default_rng(seed)
        self.now = 0.0
        self.made: list[Layout] = []
        self.running: list[Fake] = []
        self.most_running = 0
        self.lines: list[str] = []
        self.refused: Callable[[Layout], bool] = lambda layout: False
        self.error: Exception = SamplerError("no licence left")
        self.failing: Callable[[Layout], bool] = lambda layout: False

    def __call__(self, layout: Layout) -> "Fake":
        if self.refused(layout):
            raise RuntimeError("too many files")  # of CUDA's kind, which others derive from
        self.made.append(layout)
        return Fake(self, layout)

    def choose(self, first: Layout, seconds: float = 1000.0) -> Layout:
        chosen = choose(first, NUM_ENVS, self, self.lines.append, seconds)
        assert not self.running
        return chosen


class Fake:
    """Fastest with four groups, eight workers."""

    def __init__(self, shop: Workshop, layout: Layout) -> None:
        self.shop, self.layout = shop, layout
        self.num_workers = layout.num_workers or NUM_CORES * layout.workers_per_core

    def start(self) -> None:
        if self.shop.failing(self.layout):
            raise self.shop.error
        self.shop.running.append(self)
        self.shop.most_running = max(self.shop.most_running, len(self.shop.running))

    @property
    def rate(self) -> float:
        groups, per_core, _ = self.layout
        away = abs(np.log2(groups / 4)) + abs(np.log2(self.num_workers / 8)) + 2 * (per_core > 1)
        return float(1000.0 * 0.9**away)

    def measure(self) -> float:
        assert self in self.shop.running
        self.shop.now += 1.0
        return self.rate * (1 + self.shop.noise * self.shop.rng.standard_normal())

    def close(self) -> None:
        if self in self.shop.running:
            self.shop.running.remove(self)


@pytest.fixture(autouse=True)
def one_torch_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_rl.training.torch_setup.available_cpus", lambda: [0])


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop()
    monkeypatch.setattr(engine_trial, "perf_counter", lambda: made.now)
    return made


@pytest.mark.parametrize(
    "first", [Layout(2, 1, None), Layout(1, 1, 1), Layout(2, 2, None), Layout(32, 32, 32)], ids=str
)
def test_search_ends_at_the_fastest_neighbour_of_all(shop: Workshop, first: Layout) -> None:
    assert shop.choose(first) == Layout(4, 1, 8)
    assert shop.most_running == 2
    assert shop.lines[0] == f"{first.describe()} makes {Fake(shop, first).rate:,.0f} steps/s"
    assert shop.lines[-1].startswith("chose num_groups=4 workers_per_core=1 num_workers=8 in ")


def test_what_is_slower_is_not_taken_for_noise(shop: Workshop) -> None:
    shop.noise = 0.05
    reached = []
    for seed in range(40):
        shop.rng = np.random.default_rng(seed)
        reached.append(Fake(shop, shop.choose(Layout(4, 1, 4))).rate)  # 8 workers: 11 % faster
    assert min(reached) >= 900, "never slower than what was configured"
    assert np.mean(np.array(reached) == 1000) > 0.8


@pytest.mark.parametrize("seconds, num_compared", [(0.0, 0), (4.0, 0), (12.5, 1), (23.5, 2)])
def test_search_ends_in_time_with_the_fastest_so_far(
    shop: Workshop, seconds: float, num_compared: int
) -> None:
    shop.choose(Layout(2, 1, 2), seconds)
    assert len(shop.lines) == 2 + num_compared
    assert shop.lines[-1].endswith("and time was over")
    assert shop.now <= seconds + 3


def test_failure_of_one_ends_both(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Fake) -> float:
        if len(self.shop.running) == 2:
            raise RuntimeError("no such luck")
        return 1.0

    monkeypatch.setattr(Fake, "measure", fail)
    with pytest.raises(RuntimeError, match="no such luck"):
        shop.choose(Layout(2, 1, None))
    assert shop.most_running == 2
    assert not shop.running


_CANNOT_BE_HAD = [SamplerError("no licence"), OSError(11, "no more"), torch.OutOfMemoryError("no")]


@pytest.mark.parametrize("error", _CANNOT_BE_HAD, ids=str)
def test_what_cannot_be_had_is_left_out(shop: Workshop, error: Exception) -> None:
    shop.error = error
    shop.refused = lambda layout: (layout.num_workers or 0) > 8
    shop.failing = lambda layout: layout.num_groups == 4
    assert shop.choose(Layout(2, 1, 8)) == Layout(2, 1, 8)
    layout = "num_groups=2 workers_per_core=1 num_workers=16"
    assert f"{layout} cannot be had: too many files" in shop.lines
    layout = "num_groups=4 workers_per_core=1 num_workers=8"
    assert f"{layout} cannot be had: {error}" in shop.lines


@pytest.mark.parametrize("num_envs", [1, 2, 6, 7, 16, 96])
@pytest.mark.parametrize("cores", [1, 2, 3, 12])
def test_all_that_is_ever_tried_can_be_had(num_envs: int, cores: int) -> None:
    machine = Machine(tuple(Core((2 * i, 2 * i + 1)) for i in range(cores)))

    def num_workers(layout: Layout) -> int:
        config = SamplerConfig(num_envs=num_envs, **layout._asdict())
        return len(plan_workers(config, machine=machine).worker_cpus)

    seen, waiting = set(), [Layout(1, 1, None)]
    while waiting:
        layout = waiting.pop()
        if layout not in seen:
            seen.add(layout)
            waiting += neighbours(layout, num_workers(layout), num_envs)
    groups = {layout.num_groups for layout in seen}
    assert groups == {number for number in range(1, num_envs + 1) if num_envs % number == 0}
    assert {layout.workers_per_core for layout in seen} == groups


@pytest.fixture
def short_trial(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engine_trial, "SECONDS", 1.5)
    monkeypatch.setattr(engine_trial, "WINDOW_SECONDS", 0.02)


def run(run_dir: Path, *arguments: str) -> str:
    """Begins a run there, or goes on with it; returns what it shows."""
    shown = io.StringIO()
    where = "resume" if run_dir.exists() else "run_dir"
    train(parse_arguments([*arguments, f"{where}={run_dir}"]), Console(file=shown, width=200))
    return shown.getvalue()


def parameters_of(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(list_checkpoints(run_dir)[-1])["learner"]["parameters"]


@pytest.mark.usefixtures("short_trial")
def test_tuned_run_learns_as_one_that_was_told_and_goes_on_with_its_choice(tmp_path: Path) -> None:
    small = ["env=catch", "algo=ppo", "num_envs=4", "horizon=32", "minibatch_size=64"]
    small.append("total_steps=400")
    tuned, told = tmp_path / "tuned", tmp_path / "told"
    shown = run(tuned, *small, "num_groups=1", "tune=true")
    assert "trial: num_groups=1 workers_per_core=1 num_workers=none makes" in shown
    assert "trial: chose" in (tuned / "train.log").read_text()
    config = read_config(tuned)
    assert not config.tune
    choice = {name: getattr(config.sampler, name) for name in Layout._fields}
    assert f"chose {Layout(**choice).describe()}" in shown

    run(told, *small, *(f"sampler.{name}={value}" for name, value in choice.items() if value))
    parameters = parameters_of(tuned)
    for name, value in parameters_of(told).items():
        assert torch.equal(value, parameters[name]), name

    shown = run(tuned, "total_steps=800")
    assert "trial" not in shown
    assert read_config(tuned).sampler == config.sampler


class SecondOfTwo(Team):
    """Is told what the first learner has found."""

    def __init__(self, told: Layout) -> None:
        super().__init__(Ranks(rank=1, size=2, local_rank=1, local_size=2))
        self.told = told

    def share(self, name: str, value: Any = None) -> Any:
        assert (name, value) == ("layout", None)
        return self.told


def test_other_learners_take_the_answer_of_the_first_on_their_own_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_group(config: Any, learner: Any, agent: Any, *others: Any) -> Local:
        return Local(FlatParameters(agent.model), learner.rule, learner.max_gradient_norm)

    monkeypatch.setattr("accel_rl.training.build.make_exchange", without_group)
    cpus = available_cpus()
    team = SecondOfTwo(Layout(1, 1, 2))
    config = parse_arguments(["env=catch", "num_envs=8", "learners=2", "tune=true"])
    parts = build(config, None, team)
    try:
        own = parts.sampler.plan
        config, tuned = engine_trial.tune_engine(config, parts, team, cpus, pytest.fail)
        tuned.server.close()
        tuned.sampler.close()
        assert set(available_cpus()) == set(own.server_cpus)
    finally:
        os.sched_setaffinity(0, cpus)
    assert (config.sampler.num_groups, config.sampler.num_workers) == (1, 2)
    assert tuned.sampler.config.num_envs == 4
    assert tuned.sampler.plan.server_cpus == own.server_cpus
    assert tuned.learner is parts.learner


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["serial=true"], "tune=true chooses groups and workers, and serial=true has none"),
        (["resume=RUN"], "tune=true cannot be given with resume=.*leave it out"),
    ],
)
def test_trial_where_it_makes_no_sense_is_refused(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    if arguments == ["resume=RUN"]:
        run(tmp_path / "run", "env=catch", "serial=true", "num_envs=2", "total_steps=100")
        arguments = [f"resume={tmp_path / 'run'}", "serial=false"]
    with pytest.raises(ValueError, match=message):
        parse_arguments(["tune=true", *arguments])
