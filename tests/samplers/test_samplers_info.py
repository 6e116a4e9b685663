"""Numbers that environments tell: whose step they are of, in every sampler."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from queued_play import make_sampler, serve_until
from sampler_cases import lose_worker, zeros
from telling_envs import KEYS, SteppingEnv, TellingEnv, told
from tiers import PROCESSES

from accel_rl.envs import make_env_factory
from accel_rl.rollout import Rollout
from accel_rl.samplers import ParallelSampler, PolicyInput, SamplerConfig, SerialSampler

T, B = 7, 6
TELLING = make_env_factory(TellingEnv, info_keys=KEYS)


def policy(step: PolicyInput) -> np.ndarray:
    return (step.noise * 4).astype(np.int64)


def config(reset_policy: str = "immediate", **options: Any) -> SamplerConfig:
    return SamplerConfig(num_envs=B, horizon=T, reset_policy=reset_policy, **options)  # type: ignore[arg-type]


def expected_info(rollout: Rollout, t: int, b: int) -> list[float]:
    """NaN for what is not told, from the observation that the action was chosen from."""
    if not rollout.valid[t, b]:
        return [np.nan] * len(KEYS)
    ended = bool(rollout.episode_ended[t, b])
    info = told(rollout.observation[t, b], int(rollout.action[t, b]), ended)
    return [float(np.ravel(info.get(key, np.nan))[0]) for key in KEYS]


@pytest.mark.parametrize("reset_policy", ["immediate", "wait"])
def test_info_is_that_of_the_step_across_ends_and_rollouts(reset_policy: str) -> None:
    with SerialSampler(
        TELLING, config=config(reset_policy, decorrelation_steps=5), seed=3
    ) as sampler:
        num_ended = 0
        for _ in range(8):
            rollout = sampler.collect(policy)
            assert rollout.info.shape == (T, B, 4) and rollout.info.dtype == np.float32
            expected = [[expected_info(rollout, t, b) for b in range(B)] for t in range(T)]
            np.testing.assert_array_equal(rollout.info, expected)
            num_ended += rollout.episode_ended.sum()
        assert num_ended > 40


def test_episode_has_what_its_last_step_told() -> None:
    with SerialSampler(TELLING, config=config(), seed=3) as sampler:
        expected, episodes = [], []
        for _ in range(8):
            rollout = sampler.collect(policy)
            episodes += sampler.take_episodes()
            for t, b in zip(*np.nonzero(rollout.episode_ended), strict=True):
                numbers = zip(KEYS, expected_info(rollout, t, b), strict=True)
                expected.append({key: x for key, x in numbers if not np.isnan(x)})
    assert [episode.info for episode in episodes] == expected
    assert {len(info) for info in expected} == {2, 3}  # "even" at some ends, "never" at none


@PROCESSES
def test_queued_sampler_tells_what_the_last_step_of_an_episode_told() -> None:
    with make_sampler(TELLING, 2, 3) as sampler:
        episodes = []
        while len({episode.env_index for episode in episodes}) < 6 or len(episodes) <= 60:
            serve_until(sampler, sampler.steps + 100)
            episodes += sampler.take_episodes()
    numbers = dict.fromkeys(range(6), 0)
    for episode in episodes:
        numbers[episode.env_index] += 1
        number, length = numbers[episode.env_index], episode.episode_length
        action = episode.info["place"] - 100 * number - 10 * length
        assert action in range(4)
        assert episode.info["is_success"] == number % 2
        assert episode.info.get("even", length) == length


@PROCESSES
def test_environment_of_ones_own_names_its_numbers_in_its_spec() -> None:
    with ParallelSampler(SteppingEnv, config=config(num_workers=1)) as sampler:
        assert sampler.rollout_spec.info_keys == ("step", "action")
        rollout = sampler.collect(lambda step: np.full(len(step.noise), step.t % 2))
        step = rollout.observation[:-1, :, 2] + 1
        expected = np.stack([step, rollout.action], axis=-1).astype(np.float32)
        expected[step == 3] = np.nan
        np.testing.assert_array_equal(rollout.info, expected)
        copy = rollout.copy()
        sampler.collect(zeros)
        np.testing.assert_array_equal(copy.info, expected)
        assert {episode.info["step"] for episode in sampler.take_episodes()} == {4}


@pytest.mark.slow
@PROCESSES
def test_step_of_a_lost_worker_tells_nothing() -> None:
    def losing(step: PolicyInput) -> np.ndarray:
        if step.t == 5:
            lose_worker(sampler, after_order_of=0)
        return zeros(step)

    options = config(num_groups=1, num_workers=1, on_worker_failure="restart")
    with ParallelSampler(SteppingEnv, config=options) as sampler:
        sampler.rollout.info[:] = 7
        rollout = sampler.collect(losing)
        assert sampler.generation == 1
        assert not rollout.valid[5].any()
        told = ~np.isnan(rollout.info).any(axis=(1, 2))
        assert told.tolist() == [True, True, False, True, True, False, True]
        episodes = sampler.take_episodes()
    lost = [episode for episode in episodes if episode.is_lost]
    assert lost and all(episode.info == {} for episode in lost)  # it had taken no last step
    assert all(episode.info["step"] == 4 for episode in episodes if not episode.is_lost)


class Tells(TellingEnv):
    """Tells ``value`` under ``x``."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"x": self.value}


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1),
        (-3, -3),
        (0.1, np.float32(0.1)),
        (np.int8(-3), -3),
        (np.float16(0.5), 0.5),
        (np.bool_(False), 0),
        (np.array(2), 2),
        (np.array([[True]]), 1),
        (float("inf"), np.inf),
    ],
    ids=repr,
)
def test_number_of_any_kind_is_taken(value: Any, number: float) -> None:
    factory = make_env_factory(partial(Tells, value), info_keys=["x"])
    with SerialSampler(factory, config=config()) as sampler:
        assert (sampler.collect(zeros).info == number).all()


class OneNumber(SteppingEnv):
    def step(self, action: int, out: Any) -> Any:
        return super().step(action, out)._replace(info=(1.0,))


def telling(value: Any) -> Any:
    return make_env_factory(partial(Tells, value), info_keys=["x"])


@pytest.mark.parametrize(
    ("make", "tokens"),
    [
        (lambda: telling("1"), r"info\['x'\] of type str .*must be one number"),
        (lambda: telling(None), "of type NoneType"),
        (lambda: telling({"r": 1.0}), "of type dict"),
        (lambda: telling(np.zeros(2)), r"ndarray \(float64 of shape \(2,\)\)"),
        (lambda: telling(np.zeros(0)), r"ndarray \(float64 of shape \(0,\)\)"),
        (lambda: telling(np.array(1j)), r"ndarray \(complex128 of shape \(\)\)"),
        (lambda: OneNumber, r"0 \(stepping\) failed in step: .* 1 values; .* 2 info_k"),
        (lambda: make_env_factory("breakout", info_keys=["a", "b"]), r"info_keys=\[a,b\] .*breako"),
        (lambda: make_env_factory("catch", info_keys=["a"]), "env=catch, which has no info"),
        (lambda: make_env_factory(SteppingEnv, info_keys=["step"]), r"info_keys=\[step\] .*spec"),
        (lambda: make_env_factory(TellingEnv, info_keys="ab"), "TellingEnv: .*info_keys .*differ"),
        (lambda: make_env_factory(TellingEnv, info_keys=("a", "a")), "info_keys .*different"),
        (lambda: make_env_factory(TellingEnv, info_keys=("",)), "info_keys .*different"),
        (lambda: make_env_factory(TellingEnv, info_keys=(1,)), "info_keys .*different"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_what_is_no_number_or_no_key_is_refused(make: Any, tokens: str) -> None:
    with pytest.raises((RuntimeError, ValueError), match=tokens):
        with SerialSampler(make(), config=config()) as sampler:
            sampler.collect(zeros)
