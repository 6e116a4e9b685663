"""The parallel sampler gives exactly the rollouts of the serial one, and these are right."""

import dataclasses

import numpy as np
import pytest
from sampler_cases import assert_same_rollouts
from telling_envs import KEYS, TellingEnv
from tiers import slow
from toy_envs import ToyEnv

from accel_rl.envs import make_env_factory
from accel_rl.samplers import ParallelSampler, PolicyInput, SamplerConfig, SerialSampler
from accel_rl.spaces import discrete

T, B = 7, 12
TELLING = make_env_factory(TellingEnv, info_keys=KEYS)
PROCESSES = pytest.mark.processes


def tabular_policy(step: PolicyInput) -> np.ndarray:
    """Actions by inverse CDF from a table over the step of the episode."""
    table = np.random.default_rng(0).dirichlet(np.ones(4), size=16)
    cumulative = table[step.observation[:, 2]].cumsum(axis=1)
    return (step.noise[:, None] > cumulative[:, :3]).sum(axis=1)


def config(reset_policy: str = "immediate", groups: int = 1, **options: object) -> SamplerConfig:
    return SamplerConfig(
        num_envs=B,
        horizon=T,
        num_groups=groups,
        reset_policy=reset_policy,
        **options,
    )


@pytest.mark.slow
@PROCESSES
@pytest.mark.parametrize(
    "make, reset_policy, groups, workers",
    [
        (ToyEnv, "immediate", 2, 1),
        (TELLING, "wait", 1, 1),
        slow(ToyEnv, "immediate", 1, 3),
        slow(TELLING, "wait", 3, 5),
        slow(ToyEnv, "wait", 12, 12),
    ],
)
def test_parallel_rollouts_equal_serial_ones(make, reset_policy, groups, workers):
    options = config(reset_policy, groups, decorrelation_steps=5, num_workers=workers)
    with SerialSampler(make, config=options, seed=3) as serial:
        with ParallelSampler(make, config=options, seed=3) as parallel:
            for _ in range(10):
                assert_same_rollouts(
                    serial.collect(tabular_policy), parallel.collect(tabular_policy)
                )
                assert serial.take_episodes() == parallel.take_episodes()


@pytest.mark.parametrize("kind", [SerialSampler, ParallelSampler])
@pytest.mark.parametrize(
    "field, value",
    [
        ("observation", 10),
        ("observation", {}),
        ("action", 3),
        ("action", {1: discrete(2)}),
        ("frame_skip", 0),
        ("frame_stack", 1.5),
    ],
)
def test_spec_that_cannot_be_is_one_error(kind, field, value):
    def factory():
        env = ToyEnv()
        env.spec = dataclasses.replace(ToyEnv.spec, **{field: value})
        return env

    with pytest.raises(ValueError, match=rf"EnvSpec: {field} is .*must be"):
        kind(factory, config=config())


def test_copy_holds_the_final_observations_that_there_are_and_no_others():
    with SerialSampler(ToyEnv, config=config(), seed=3) as sampler:
        for _ in range(3):
            rollout = sampler.collect(tabular_policy)
        copy = rollout.copy()
        used = rollout.final_step >= 0
        assert used.any() and not used.all()
        assert_same_rollouts(rollout, copy)
        assert rollout.final_observation[~used].any()  # of earlier rollouts
        assert not copy.final_observation[~used].any()


@pytest.mark.parametrize("reset_policy", ["immediate", "wait"])
def test_serial_rollout_is_what_the_toy_environment_says(reset_policy):
    """Replays every column by hand: alignment, autoreset, row T to row 0, final observations."""
    with SerialSampler(ToyEnv, config=config(reset_policy), seed=1) as sampler:
        expected = [None] * B  # the next observation of each environment
        for _ in range(10):
            rollout = sampler.collect(tabular_policy)
            for b in range(B):
                has_ended = False
                for t in range(T):
                    now, then = rollout.observation[t, b], rollout.observation[t + 1, b]
                    assert rollout.valid[t, b] == (not has_ended)
                    if has_ended:
                        assert not then.any()
                        assert rollout.reward[t, b] == rollout.raw_reward[t, b] == 0
                        continue
                    assert expected[b] is None or (now == expected[b]).all()
                    step = now[2] + 1
                    assert rollout.raw_reward[t, b] == 10 * step + rollout.action[t, b]
                    assert rollout.reward[t, b] == np.sign(rollout.action[t, b] - 1)
                    ended = rollout.episode_ended[t, b]
                    if rollout.truncated[t, b]:
                        (slot,) = np.flatnonzero(rollout.final_step[:, b] == t)
                        final = rollout.final_observation[slot, b]
                        assert final.tolist() == [now[0], now[1], step]
                    assert ended == (rollout.truncated[t, b] or then[2] == 0 or not then.any())
                    expected[b] = [now[0], now[1] + ended, 0 if ended else step]
                    has_ended = ended and reset_policy == "wait"
                assert (rollout.final_step[:, b] >= 0).sum() == rollout.truncated[:, b].sum()


def test_episodes_equal_those_added_up_by_hand():
    with SerialSampler(ToyEnv, config=config(), seed=5) as sampler:
        reported, expected, sums = [], [], np.zeros((B, 3))
        for _ in range(20):
            rollout = sampler.collect(tabular_policy)
            reported += sampler.take_episodes()
            for t in range(T):
                for b in range(B):
                    sums[b] += (rollout.raw_reward[t, b], rollout.reward[t, b], 1)
                    if rollout.episode_ended[t, b]:
                        expected.append((b, *sums[b], bool(rollout.truncated[t, b]), False, {}))
                        sums[b] = 0
    assert len(reported) > 100
    assert [tuple(episode) for episode in reported] == expected


def test_noise_does_not_repeat_between_rollouts_or_environments():
    seen = []

    def policy(step):
        seen.append(step.noise.copy())
        return np.zeros(len(step.noise), int)

    with SerialSampler(ToyEnv, config=config(), seed=0) as sampler:
        for _ in range(4):
            sampler.collect(policy)
    assert len(np.unique(np.concatenate(seen))) == 4 * T * B


@PROCESSES
def test_rollout_is_written_in_shared_memory_without_a_copy():
    options = config(groups=2, num_workers=1)
    with ParallelSampler(ToyEnv, config=options) as sampler:
        views = []

        def policy(step):
            views.append(step.observation)
            return np.zeros(len(step.observation), int)

        rollout = sampler.collect(policy)
        assert rollout.observation is sampler.rollout.observation
        assert all(np.shares_memory(view, rollout.observation) for view in views)
