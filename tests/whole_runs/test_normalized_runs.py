"""Runs of Pendulum with normalized observations and rewards, from their first step to the film."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launched_runs import last_checkpoint
from launched_runs import train as train_program
from run_files import assert_same
from saved_runs import trained

from accel_rl.agents import PolicyAgent
from accel_rl.algos.normalization import Normalization
from accel_rl.samplers import PolicyInput
from accel_rl.tools.policy import load_policy
from accel_rl.training.evaluation import Evaluator

ENV = "env=control_envs:Swing"
OPTIONS = (
    *(ENV, "algo=ppo", "normalize_observation=true", "normalize_reward=true"),
    *("num_envs=4", "horizon=25", "minibatch_size=50", "epochs=2", "decorrelation_steps=10"),
    *("log_interval=200", "checkpoint_interval=400", "total_steps=800"),
)

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize("overlap", [pytest.param(False, marks=pytest.mark.slow), True])
def test_rollout_is_learned_from_with_the_moments_that_acted_in_it(
    overlap: bool, tmp_path, monkeypatch
) -> None:
    acted, is_behind = {}, []
    act, take = PolicyAgent.act_with_log_prob, Normalization.take

    def watched_act(agent: Any, observation: Any, *rest: Any) -> Any:
        assert agent.normalizer is not None
        for row in observation.numpy():
            acted[row.tobytes()] = agent.normalizer
        return act(agent, observation, *rest)

    def watched_take(self: Any, batch: Any) -> Any:
        for row in batch.observation[:-1].flatten(0, 1).numpy():
            assert_same(acted[row.tobytes()]._asdict(), batch.normalizer._asdict())
        is_behind.append(batch.normalizer is not self._agent.normalizer)
        return take(self, batch)

    monkeypatch.setattr(PolicyAgent, "act_with_log_prob", watched_act)
    monkeypatch.setattr(Normalization, "take", watched_take)
    options = [each for each in OPTIONS[:-1] if "checkpoint" not in each]
    trained(tmp_path / "run", *options, f"overlap={overlap}".lower(), "total_steps=300")
    assert is_behind == [False, overlap, overlap]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, PolicyAgent]]:
    """A run, and the agents of its own evaluations by steps, as they were."""
    agents, evaluate = {}, Evaluator.evaluate

    def watched(self: Evaluator, steps: int, *rest: Any) -> dict[str, float]:
        agents[steps] = copy.deepcopy(self._agent)
        return {**evaluate(self, steps, *rest), "episode_return_raw_mean": float(-steps)}

    options = ("evaluation_interval=400", "evaluation_steps=200", "lr=1e-2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluator, "evaluate", watched)
        run_dir = trained(tmp_path_factory.mktemp("run") / "run", *OPTIONS, *options)
    assert list(agents) == [400, 800]
    return run_dir, agents  # type: ignore[return-value]


def steps_of(num: int) -> PolicyInput:
    """Observations of Pendulum, more than the torque's bounds allow for."""
    rng = np.random.default_rng(1)
    angle, speed = rng.uniform(-3, 3, num), rng.uniform(-8, 8, num)
    observation = np.stack((np.cos(angle), np.sin(angle), speed), 1).astype(np.float32)
    is_first, reward = np.zeros(num, np.bool_), np.zeros(num, np.float32)
    return PolicyInput(observation, rng.random(num), 0, slice(0, num), is_first, reward)


def actions(agent: PolicyAgent, step: PolicyInput) -> Any:
    tensors = torch.from_numpy(step.observation.copy()), torch.from_numpy(step.noise)
    return agent.act(*tensors, step.env_slice).numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoint", "steps", "greedy"), [("best", 400, False), (400, 400, True), (None, 800, True)]
)
def test_loaded_policy_acts_as_the_evaluation_within_the_bounds(
    checkpoint: Any, steps: int, greedy: bool, evaluated: Any
) -> None:
    run_dir, agents = evaluated
    agent = agents[steps].greedy() if greedy else agents[steps]
    step = steps_of(500)
    found = load_policy(run_dir, checkpoint, greedy=greedy)(step)
    drawn = actions(agent, step)
    np.testing.assert_array_equal(found, drawn.clip(-2, 2))
    assert greedy or abs(drawn).max() > 2
    agent.normalizer, normalizer = None, agent.normalizer
    assert not np.array_equal(actions(agent, step), drawn)
    agent.normalizer = normalizer


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.parametrize("options", [("algo=a3c", "horizon=5"), ("algo=appo", *OPTIONS[5:8])])
def test_learners_with_a_store_share_their_moments(options: tuple[str, ...], tmp_path) -> None:
    shared = [ENV, "learners=2", "num_workers=0", "num_envs=4", "decorrelation_steps=0"]
    given = [*shared, *options, *OPTIONS[2:4], "total_steps=2000", "device=cpu"]
    assert train_program(tmp_path, *given) == ""
    saved = last_checkpoint(tmp_path)
    observations = saved["algorithm"]["observation_moments"]["observation"]
    assert observations["count"] == saved["counts"]["steps"]
    assert saved["algorithm"]["reward_moments"]["count"] == saved["counts"]["steps"]
    assert train_program(tmp_path, f"resume={tmp_path}", "total_steps=3000") == ""
    again = last_checkpoint(tmp_path)
    assert again["algorithm"]["reward_moments"]["count"] == again["counts"]["steps"] >= 3000
