"""Runs in an environment with action masks: trained, resumed, evaluated, and as a policy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from saved_runs import SMALL_DQN, quiet, trained
from space_envs import MaskedEnv, masked
from torch import nn

from accel_rl.cli.parse import parse_arguments
from accel_rl.envs import make_env_factory
from accel_rl.samplers import SerialSampler
from accel_rl.tools.policy import load_policy
from accel_rl.training.train import train

ALGORITHMS = {
    "ppo": ["algo=ppo", "horizon=10", "minibatch_size=10"],
    "lstm": ["algo=a2c", "memory=lstm"],
    "own": [*SMALL_DQN, "save_replay=true", f"model={__name__}:own"],
}


class Own(nn.Module):
    """It gets observations without the mask."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, num_actions)

    def forward(self, observation: Any) -> Any:
        return self.layer(observation).unsqueeze(2)


def own(observation_shape: Any, num_actions: int, **_: Any) -> Own:
    assert observation_shape == (3,)
    return Own(num_actions)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_action_is_illegal_from_the_first_step_to_the_policy_that_was_learned(
    name: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(MaskedEnv, "illegal", 0)
    more = ["env=space_envs:masked", "decorrelation_steps=20", "evaluation_interval=40"]
    run_dir = trained(
        tmp_path / "run", *ALGORITHMS[name], *more, "evaluation_steps=40", "total_steps=40"
    )
    train(parse_arguments([f"resume={run_dir}", "total_steps=80"]), quiet())
    policy = load_policy(run_dir, greedy=name == "lstm")
    with SerialSampler(make_env_factory(masked), num_envs=3, horizon=40, seed=2) as sampler:
        sampler.collect(policy)
    assert MaskedEnv.illegal == 0
    mask = np.zeros((2, 6), np.int8)
    mask[0, 4] = mask[1, 0] = 1
    given = {"observation": np.zeros((2, 3), np.float32), "action_mask": mask}
    assert load_policy(run_dir)(given, np.ones(2, np.bool_)).tolist() == [4, 0]
    with pytest.raises(ValueError, match="a mapping with the keys"):
        policy({"observation": given["observation"]})
