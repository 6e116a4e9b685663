"""Algorithms of the user's own, by ``algo=module:function``: all that a run can be does with them.

`RatioConfig` is a small algorithm with probability ratios, all in this file.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from launched_runs import launched
from rich.console import Console
from run_files import rows_of
from saved_runs import trained

from accel_rl.__main__ import main
from accel_rl.agents import Agent, PolicyAgent, RolloutTensors
from accel_rl.algos import ActorCritic, ActorCriticConfig, LearnerConfig, LearnerSpec
from accel_rl.algos.actor_critic import bootstrap_values, evaluate, returns_and_advantages
from accel_rl.algos.optimizer import masked_shares
from accel_rl.cli.help import train_help
from accel_rl.cli.parse import parse_arguments
from accel_rl.config import TrainConfig
from accel_rl.parallel import Adam, GradientSync
from accel_rl.presets import find_preset, ppo
from accel_rl.runs.saved import read_config
from accel_rl.samplers import SamplerConfig
from accel_rl.sweeps.plan import check_runs, plan_runs
from accel_rl.system.signing import UntrustedError
from accel_rl.tools.policy import load_policy
from accel_rl.training.train import RunError, train

HERE = Path(__file__).parent
ALGO = "algo=test_own_algorithm:ratio"
SMALL = ["env=catch", "num_envs=4", "log_interval=40"]
SERIAL = [*SMALL, "num_workers=0"]
WHOLE = "total_steps=160"


@dataclass(frozen=True, kw_only=True)
class RatioConfig(ActorCriticConfig):
    """Importance-weighted policy gradients."""

    uses_ratios: ClassVar[bool] = True
    rule: ClassVar = Adam(eps=1e-5)

    lr: float = 1e-3
    """learning rate"""
    most: int = 2
    """limit of the ratio"""

    def make_learner(self, agent: Agent, sync: GradientSync, task: LearnerSpec) -> Ratio:
        assert isinstance(agent, PolicyAgent)
        return Ratio(agent, self, sync, task)


class Ratio(ActorCritic):
    """One update of each rollout; ``ratio_error``: how far the first ratios are from 1."""

    metrics = ("mean_ratio", "spread")
    num_rollouts = 0

    def get_state(self) -> dict[str, object]:
        return {"num_rollouts": self.num_rollouts}

    def set_state(self, state: dict[str, int]) -> None:  # type: ignore[override]
        self.num_rollouts = state["num_rollouts"]

    def loss(self, batch: RolloutTensors) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        (T, B), config = batch.action.shape, self.config
        self.num_rollouts += 1
        output = evaluate(self.agent, batch.observation[:T].flatten(0, 1), "float32")
        logits, value = output.logits.view(T, B, -1), output.value.view(T, B)
        pi = logits.log_softmax(2).gather(2, batch.action.unsqueeze(2)).squeeze(2)
        ratio = (pi - batch.log_prob).exp().clamp(max=config.most)
        bounds = bootstrap_values(self.agent, batch, config)
        return_, advantage = returns_and_advantages(batch, value.detach(), *bounds, config)
        loss = masked_shares((return_ - value).square() - ratio * advantage, batch.valid)
        return loss, {"mean_ratio": ratio.mean(), "spread": ratio.std()}


def ratio(num_envs: int = 8) -> TrainConfig:
    """Ratios of one's own

    Its learning rate goes with the number of environments.
    """
    learner = RatioConfig(lr=1e-3 * num_envs / 8)
    return TrainConfig(sampler=SamplerConfig(num_envs=num_envs, horizon=5), learner=learner)


def fails() -> TrainConfig:
    raise KeyError("no such thing")


def gives_another_thing() -> int:
    return 3


def takes_more(name: str) -> TrainConfig:
    raise AssertionError


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where processes that a test starts find this module, and the examples."""
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1]), prepend=os.pathsep)
    monkeypatch.syspath_prepend(HERE.parents[1])


# ---- what a run can be ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [["overlap=true"], pytest.param([], marks=pytest.mark.slow)],
    ids=["overlap", "turns"],
)
def test_ratios_are_to_the_parameters_that_acted(options: list[str], tmp_path: Path) -> None:
    run_dir = trained(tmp_path / "run", ALGO, *SERIAL, WHOLE, "lr=0.05", *options)
    spreads = [float(row["spread"]) for row in rows_of(run_dir / "metrics.csv")[1:]]
    assert all((spread > 1e-4) == bool(options) for spread in spreads)


@pytest.mark.nightly
@pytest.mark.processes
def test_learners_over_a_store_take_over_its_parameters_within_rollouts(tmp_path: Path) -> None:
    options = ("num_workers=1", "learners=2", "sync=store", "pull_steps=2", "lr=0.05")
    with launched(tmp_path, ALGO, *SMALL, *options, "total_steps=400") as run:
        run.ends(0)
    assert any(float(row["spread"]) > 1e-4 for row in rows_of(tmp_path / "metrics.csv"))


@pytest.mark.processes
@pytest.mark.slow
def test_plan_policy_evaluation_and_plot_know_the_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--plan", ALGO, *SERIAL]) == 0
    runs = [str(trained(Path(f"run{x}"), ALGO, *SERIAL, f"most={x}")) for x in (2, 3)]
    assert main(["plot", *runs]) == 0
    assert "most=3" in capsys.readouterr().out
    assert main(["evaluate", runs[0], "num_steps=20", "num_envs=2", "num_workers=0"]) == 0
    assert load_policy(runs[0]).env_spec.num_actions == 3


def test_sweep_of_an_own_algorithm_is_tried_out_first() -> None:
    runs = plan_runs({"algo": ALGO[5:], "env": "catch", "seed": "0..1"})
    check_runs(runs)
    assert runs[0].name == "catch-test_own_algorithm-ratio-0"


@dataclass(frozen=True, kw_only=True)
class StatelessConfig(RatioConfig):
    def make_learner(self, agent: Agent, sync: GradientSync, task: LearnerSpec) -> Ratio:
        learner = super().make_learner(agent, sync, task)
        return SimpleNamespace(**{**vars(learner), "update": learner.update})  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class EagerConfig(RatioConfig):
    def make_learner(self, agent: Agent, sync: GradientSync, task: LearnerSpec) -> Ratio:
        learner = super().make_learner(agent, sync, task)
        learner.update = lambda batch: {}  # type: ignore[assignment, misc]
        return learner


class RulelessConfig(RatioConfig):
    rule = LearnerConfig.rule


class UnnamedConfig(RatioConfig):
    def make_learner(self, agent: Agent, sync: GradientSync, task: LearnerSpec) -> Ratio:
        learner = super().make_learner(agent, sync, task)
        learner.metric_names = ("mean_ratio", *learner.optimizer.names)
        return learner


# ---- the preset ----------------------------------------------------------------------------------


def test_preset_of_ones_own_has_its_name_its_options_and_its_rule() -> None:
    config = parse_arguments([ALGO, "num_envs=16", "most=5"])
    assert config.algo == ALGO[5:] and config.sampler.num_envs == 16
    assert config.learner == RatioConfig(lr=2e-3, most=5)
    assert find_preset("ppo") is ppo


def test_help_shows_the_options_of_a_preset_of_ones_own() -> None:
    text = train_help([ALGO, "--help"], 80)
    assert re.search("  most=2 +limit of the ratio", text)
    assert "  Its learning rate goes with the number of environments." in text


MINE = "algo=test_own_algorithm"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("algo=pp", "algo=pp .* ppo"),
        ("algo=no_such_module:make", "algo=no_such_module:make: .* PYTHONPATH"),
        (f"{MINE}:nothing", f"{MINE}:nothing: .* no function"),
        (f"{MINE}:", f"{MINE}: names no function; use module:f"),
        (f"{MINE}:fails", r"algo=.*:fails: .* KeyError: 'no such.*\(.*line"),
        (f"{MINE}:gives_another_thing", "class int; it must"),
        (f"{MINE}:takes_more", "algo=.*TypeError.*without arguments"),
        (f"{ALGO} mosst=3", "mosst; did you mean most"),
        (f"{ALGO} memory=lstm", f"memory=lstm .* {MINE}:ratio"),
        (f"{ALGO} num_envs=many", "num_envs=many is not valid; it must be: integer"),
    ],
)
def test_mistake_about_a_preset_of_ones_own_is_told_in_one_message(
    arguments: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        parse_arguments(arguments.split())


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (StatelessConfig(), "the learner SimpleNamespace must define get_state, as accel_rl.algos"),
        (EagerConfig(), r"Ratio.update must take .*progress, steps\); it takes \(batch\)"),
        (RulelessConfig(), "class RulelessConfig, which must define rule"),
        (UnnamedConfig(), "a value for spread, which is not in its metric_names"),
    ],
    ids=["no state", "wrong arguments", "no rule", "metric without a name"],
)
def test_learner_that_lacks_something_is_refused(
    learner: RatioConfig, message: str, tmp_path: Path
) -> None:
    config = replace(parse_arguments([*SERIAL, WHOLE]), learner=learner, run_dir=f"{tmp_path}/run")
    ends_run = isinstance(learner, UnnamedConfig)
    with pytest.raises(RunError if ends_run else ValueError, match=message):
        train(config, Console(quiet=True))
    assert ends_run or not list(tmp_path.iterdir())


def test_file_of_options_may_name_the_preset(tmp_path: Path) -> None:
    (tmp_path / "o.yaml").write_text("algo: test_own_algorithm:ratio\nlearner: {most: 4}\n")
    with pytest.raises(UntrustedError, match="algo=test_own_algorithm:ratio"):
        parse_arguments([f"config={tmp_path}/o.yaml"])
    config = parse_arguments([f"config={tmp_path}/o.yaml", "trust=true"])
    assert config.learner == RatioConfig(most=4) and config.algo == ALGO[5:]


# ---- trust ---------------------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody else's run, whose preset leaves a trace when it is imported."""
    text = "open('imported', 'w').close()\nfrom test_own_algorithm import ratio as make\n"
    (tmp_path / "theirs.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    trained(tmp_path / "run", "algo=theirs:make", *SERIAL)
    monkeypatch.delitem(sys.modules, "theirs")
    (tmp_path / "imported").unlink()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    return tmp_path / "run"


def test_config_of_somebody_else_is_read_with_trust_alone(foreign: Path) -> None:
    with pytest.raises(UntrustedError, match="algo=theirs:make"):
        read_config(foreign)
    with pytest.raises(UntrustedError, match="algo=theirs:make"):
        train(replace(parse_arguments(SERIAL), resume=str(foreign)))
    assert not Path("imported").exists()
    assert read_config(foreign, trust=True).algo == "theirs:make"
