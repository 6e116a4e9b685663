"""Clipped environments: bounds are kept behind them, and nothing else changes."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from batches import LoopBatch, Walk
from control_envs import Aim, Swing

from accel_rl.envs import (
    Batched,
    EnvSpec,
    StepResult,
    make_env_factory,
    probe_spec,
)
from accel_rl.envs.base import is_environment, is_resumable
from accel_rl.envs.clipped import clip, clipped, clipped_share
from accel_rl.samplers import ParallelSampler, PolicyInput, SamplerError, SerialSampler
from accel_rl.spaces import Leaf, discrete, random_values

BOUNDED = Leaf((2,), np.dtype(np.float64), [-1, -np.inf], [0.5, 2])
CLIPPED = replace(BOUNDED, is_clipped=True)


class Echo:
    """The observation is the last action; the reward its sum, and the number of the environment."""

    spec = EnvSpec(name="echo", observation=Leaf((2,), np.dtype(np.float64)), action=BOUNDED)

    def __init__(self, env_index: int = 0) -> None:
        self.number = env_index

    def seed(self, seed: np.random.SeedSequence) -> None:
        pass

    def reset(self, out: Any) -> None:
        out[:] = 0

    def step(self, action: Any, out: Any) -> StepResult:
        out[:] = action
        reward = float(action.sum())
        return StepResult(reward, 100.0 * self.number, False, False, False)

    def close(self) -> None:
        pass


def batch_of(make: Any) -> Batched:
    return Batched(partial(LoopBatch, make=make, autoreset="disabled"))


def wild(step: PolicyInput) -> Any:
    return np.stack((step.noise * 8 - 4, 4 - step.noise * 8), 1)


@pytest.mark.parametrize(
    ("is_batch", "sampler_type"),
    [
        (False, SerialSampler),
        (True, SerialSampler),
        pytest.param(True, ParallelSampler, marks=[pytest.mark.slow, pytest.mark.processes]),
    ],
    ids=["single", "batch", "parallel"],
)
def test_rollout_has_the_action_as_drawn_and_the_environment_the_clipped_one(
    is_batch: bool, sampler_type: Any
) -> None:
    made: Any = batch_of(Echo) if is_batch else Echo
    with sampler_type(clipped(made), num_envs=6, horizon=20, num_groups=2) as sampler:
        assert sampler.env_spec.action == CLIPPED
        rollout = sampler.collect(wild)
        action, seen = rollout.action.copy(), rollout.observation[1:].copy()
        numbers = rollout.raw_reward.copy()
        reward = rollout.reward.copy()
    assert abs(action).max() > 3
    np.testing.assert_array_equal(seen, action.clip([-1, -np.inf], [0.5, 2]))
    np.testing.assert_allclose(reward, seen.sum(2), rtol=1e-5)
    assert is_batch or sorted(set(numbers.ravel())) == [100.0 * i for i in range(6)]


def test_environments_without_bounded_floats_stay_as_they_are() -> None:
    assert type(clipped(Walk)()) is Walk
    walks = clipped(batch_of(Walk))()
    assert type(walks.make(2)) is LoopBatch  # type: ignore[attr-defined]
    assert probe_spec(clipped(Walk)) == Walk.spec


def test_state_goes_through_and_play_goes_on_from_it() -> None:
    env: Any = clipped(make_env_factory(Swing))()
    assert is_resumable(env) and is_environment(env)
    out, again = np.zeros(3, np.float32), np.zeros(3, np.float32)
    env.seed(np.random.SeedSequence(3))
    env.reset(out)
    env.step(np.array([9.0], np.float32), out)
    state = env.get_state()
    expected = [(env.step(np.array([-5.0], np.float32), out), out.tolist()) for _ in range(5)]
    other: Any = clipped(make_env_factory(Swing))()
    other.seed(np.random.SeedSequence(4))
    other.set_state(state)
    found = [(other.step(np.array([-5.0], np.float32), again), again.tolist()) for _ in range(5)]
    assert found == expected
    walk: Any = clipped(Echo)()
    assert not is_resumable(walk)


def test_one_environment_given_twice_is_refused_behind_the_clipping_too() -> None:
    env = Echo()
    with pytest.raises(SamplerError, match="same environment twice"):
        SerialSampler(clipped(lambda: env), num_envs=2, horizon=1).start()


def test_leaves_of_a_mapping_are_clipped_where_they_have_bounds() -> None:
    spec = probe_spec(clipped(make_env_factory(Aim)))
    assert spec.action["number"].is_clipped  # type: ignore[index]
    assert spec.action["kind"] == discrete(3)  # type: ignore[index]
    space = {"a": BOUNDED, "b": discrete(3), "c": {"d": Leaf((), np.dtype(np.float32), 0, 1)}}
    kind = [("a", "f8", 2), ("b", "i8"), ("c", [("d", "f4")])]
    action = np.array([([-3, -3], 2, (7,)), ([3, 3], 0, (-7,))], kind)
    before = action.copy()
    inside = clip(space, action)
    assert np.array_equal(action, before)
    assert inside["a"].tolist() == [[-1, -3], [0.5, 2]]
    assert inside["b"].tolist() == [2, 0] and inside["c"]["d"].tolist() == [1, 0]


def test_share_of_clipped_floats_is_that_of_those_with_two_different_bounds() -> None:
    """Of valid steps; integers, equal bounds and floats with one bound do not count."""
    leaf = Leaf((4,), np.dtype(np.float32), [-1, 100, 0, 0], [1, 200, 0, np.inf], is_clipped=True)
    action = np.array([[[1.5, 150, 9, -9]], [[0, 99, 9, -9]], [[5, 5, 9, -9]]], np.float32)
    valid = np.array([[True], [True], [False]])
    assert clipped_share(leaf, action, valid) == 2 / 4
    structs = np.zeros((3, 1), [("a", "f4", 4), ("b", "i8")])
    structs["a"] = action
    assert clipped_share({"a": leaf, "b": discrete(3)}, structs, valid) == 2 / 4
    assert clipped_share(discrete(3), np.zeros((3, 1), np.int64), valid) is None
    assert clipped_share(leaf, action, np.zeros((3, 1), np.bool_)) is None


def test_random_steps_of_clipped_floats_spread_over_their_bounds() -> None:
    leaf = Leaf((2,), np.dtype(np.float32), [-1, 100], [1, 200], is_clipped=True)
    drawn = random_values(leaf, np.random.default_rng(0), 4000)
    np.testing.assert_allclose(drawn.mean(0), [0, 150], atol=2)
    np.testing.assert_allclose(drawn.std(0), [1, 50], rtol=0.05)
