"""`TorchRLEnv` by TorchRL's own check and against Gymnasium; optional packages that are missing."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from echo_env import FIRST, EchoEnv
from tensordict import TensorDict
from torchrl.envs import RewardSum, TransformedEnv, check_env_specs
from toy_envs import ScriptedEnv

from accel_rl.vector import TorchRLEnv, VectorEnv

B = 4


def make(env: Any, num_envs: int = B, **options: Any) -> TorchRLEnv:
    options = {"num_workers": 0, "autoreset_mode": "Disabled", **options}
    return TorchRLEnv(VectorEnv(env, num_envs, **options))


@pytest.mark.parametrize("name", ["CartPole-v1", "catch", "counting"])
def test_their_own_check_passes(name: str) -> None:
    env = make(name)
    check_env_specs(env, seed=0)


def test_rollout_over_resets_is_the_same_as_by_hand_with_the_same_seed() -> None:
    factory = partial(gymnasium.make, "CartPole-v1", max_episode_steps=15)
    env = make(factory)
    env.set_seed(3)
    torch.manual_seed(0)
    rollout = env.rollout(60, break_when_any_done=False)  # [B, T]
    env.close()
    other = gymnasium.vector.SyncVectorEnv([factory] * B, autoreset_mode="Disabled")
    expected, _ = other.reset(seed=3)
    for t in range(60):
        row = rollout[:, t]
        assert np.array_equal(row["observation"].numpy(), expected)
        observation, reward, terminated, truncated, _ = other.step(row["action"].numpy())
        now = row["next"]
        assert np.array_equal(now["observation"].numpy(), observation)  # the last of an episode
        assert np.array_equal(now["reward"].numpy()[:, 0], reward)
        assert np.array_equal(now["raw_reward"].numpy()[:, 0], reward)
        assert np.array_equal(now["terminated"].numpy()[:, 0], terminated)
        assert np.array_equal(now["truncated"].numpy()[:, 0], truncated)
        done = terminated | truncated
        assert np.array_equal(now["done"].numpy()[:, 0], done)
        expected = other.reset(options={"reset_mask": done})[0] if done.any() else observation
    assert rollout["next", "truncated"].any() and rollout["next", "terminated"].any()


def test_it_is_closed_once_it_was_closed() -> None:
    """TorchRL's collectors close what is not."""
    env = make("catch")
    assert not env.is_closed and not TransformedEnv(env, RewardSum()).is_closed
    env.close()
    assert env.is_closed


def test_results_are_on_the_device_that_torchrl_moves_it_to() -> None:
    env = make("catch").to("cpu")
    cpu = torch.device("cpu")
    assert env.reset().device == cpu
    rollout = env.rollout(30, break_when_any_done=False)
    assert rollout.device == cpu and rollout["next", "done"].any()


def test_steps_of_some_environments_alone_are_refused() -> None:
    env = make(partial(ScriptedEnv, "..t", "....t"))
    with pytest.raises(NotImplementedError, match="leave break_when_all_done out"):
        env.step(env.rand_action(env.reset()).set("_step", torch.ones(B, dtype=torch.bool)))


def test_game_goes_on_after_a_lost_life() -> None:
    env = make(partial(ScriptedEnv, "l.t"), 1)
    state = env.reset()
    seen = []
    for _ in range(4):
        state["action"] = torch.tensor([2])
        stepped, state = env.step_and_maybe_reset(state)
        seen.append([*stepped["next", "observation"][0].tolist(), bool(stepped["next", "done"])])
        assert stepped["next", "reward"].item() == 2
        assert stepped["next", "raw_reward"].item() == 102
    assert seen == [[1, 1, 0, True], [1, 1, 1, False], [1, 1, 2, True], [2, 1, 0, True]]
    assert isinstance(state, TensorDict)


def test_actions_count_from_0_wherever_the_space_starts() -> None:
    env = make(EchoEnv, 3)
    start = env.reset().set("action", torch.arange(3))
    assert env.step(start)["next", "reward"].flatten().tolist() == [FIRST, FIRST + 1, FIRST + 2]
