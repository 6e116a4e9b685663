"""The algorithms of docs/your_algorithm.md, with every kind of space."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from documents import ROOT, read_blocks
from launched_runs import last_checkpoint, same_tensors
from rich.console import Console
from run_files import rows_of

from accel_rl.agents import AnyAgent
from accel_rl.algos import DQN, PPO, DQNConfig, PPOConfig, Task
from accel_rl.cli.parse import parse_arguments
from accel_rl.config import TrainConfig
from accel_rl.parallel import Exchange
from accel_rl.samplers import SamplerConfig
from accel_rl.training.train import train

SPACES = {
    "floats": ("env=Pendulum-v1",),
    "mappings": ("env=control_envs:Aim",),
    "mask": ("env=control_envs:MaskedGrid",),
    "memory": ("env=Pendulum-v1", "lstm=true"),
}
SHORT = ("serial=true", "num_envs=4", "horizon=16", "log_interval=64", "decorrelation_steps=0")


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both modules of the page can be imported."""
    for block in read_blocks((ROOT / "docs/your_algorithm.md").read_text()):
        if block.language == "python":
            (tmp_path / block.name).write_text(block.text)
            monkeypatch.delitem(sys.modules, block.name.removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(
    ("algo", "metric"),
    [("my_algorithm", "policy_loss"), ("my_ppo", "penalty")],
)
def test_algorithm_learns_with_every_space(
    algo: str, metric: str, space: str, tmp_path: Path
) -> None:
    more = ("minibatch_size=32",) if algo == "my_ppo" else ()
    run_dir = tmp_path / "run"
    arguments = (f"algo={algo}:make", *SPACES[space], *SHORT, *more, "total_steps=256")
    train(parse_arguments([*arguments, f"run_dir={run_dir}"]), Console(file=io.StringIO()))
    values = np.array([float(row[metric]) for row in rows_of(run_dir / "metrics.csv")])
    assert len(values) == 4 and np.isfinite(values).all() and (values != 0).all()


@dataclass(frozen=True, kw_only=True)
class PlainPPO(PPOConfig):
    """PPO, with an option that nothing reads."""

    penalty_coefficient: float = 0.0
    """Nothing."""

    def make_learner(self, agent: AnyAgent, exchange: Exchange, task: Task) -> PPO:
        return super().make_learner(agent, exchange, task)


@dataclass(frozen=True, kw_only=True)
class PlainDQN(DQNConfig):
    """DQN, with an option that nothing reads."""

    conservative_coefficient: float = 0.0
    """Nothing."""

    def make_learner(self, agent: AnyAgent, exchange: Exchange, task: Task) -> DQN:
        return super().make_learner(agent, exchange, task)


def plain_ppo() -> TrainConfig:
    return TrainConfig(sampler=SamplerConfig(num_envs=16, horizon=64), learner=PlainPPO())


def plain_dqn() -> TrainConfig:
    learner = PlainDQN(min_steps=500, replay_size=20000)
    return TrainConfig(sampler=SamplerConfig(num_envs=16, horizon=4), learner=learner)


ON_CATCH = ("env=catch", "serial=true", "num_envs=4", "min_steps=40", "total_steps=400")


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("plain", "own", "coefficient", "arguments"),
    [
        (
            "plain_ppo",
            "my_ppo",
            "penalty_coefficient",
            (*SHORT, "env=Pendulum-v1", "minibatch_size=32", "total_steps=192"),
        ),
        ("plain_dqn", "my_dqn", "conservative_coefficient", ON_CATCH),
        (
            "plain_dqn",
            "my_dqn",
            "conservative_coefficient",
            (*ON_CATCH, "prioritized=true", "num_atoms=11", "v_min=-1", "v_max=1"),
        ),
    ],
    ids=["ppo", "dqn", "categorical"],
)
def test_penalty_changes_what_is_learned_only_where_it_counts(
    plain: str, own: str, coefficient: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    learned = []
    for algo, value in ((f"{__name__}:{plain}", 0), (f"{own}:make", 0), (f"{own}:make", 1)):
        run_dir = tmp_path / f"{len(learned)}"
        options = (f"algo={algo}", f"{coefficient}={value}", f"run_dir={run_dir}", *arguments)
        train(parse_arguments(options), Console(file=io.StringIO()))
        learned.append(last_checkpoint(run_dir)["learner"]["parameters"])
    assert same_tensors(learned[0], learned[1])
    assert not same_tensors(learned[0], learned[2])
