"""What a policy may return beside actions, and what happens when it raises."""

import signal
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from sampler_cases import zeros
from tiers import processes, slow_processes
from toy_envs import ScriptedEnv, SlowEnv, ToyEnv

from accel_rl.samplers import (
    ParallelSampler,
    PolicyInput,
    PolicyOutput,
    RolloutSampler,
    SamplerConfig,
    SamplerError,
    SerialSampler,
)

T, B = 5, 6
MAKERS: dict[str, Any] = {
    "serial": SerialSampler,
    "1 group": partial(ParallelSampler, num_groups=1, num_workers=2),
    "3 groups": partial(ParallelSampler, num_groups=3, num_workers=1),
}
KINDS = pytest.mark.parametrize("kind", ["serial", processes("3 groups")])


def make(kind: str, env: Any = ToyEnv, **settings: Any) -> RolloutSampler:
    config = SamplerConfig(num_envs=B, horizon=T)
    sampler: RolloutSampler = MAKERS[kind](env, config=config, seed=3, **settings)
    return sampler


# ---- a policy that raises ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "place", "error"),
    [
        ("serial", (0, 4), ZeroDivisionError),
        ("serial", (4, 4), KeyboardInterrupt),
        processes("3 groups", (0, 0), KeyboardInterrupt),
        slow_processes("3 groups", (0, 4), SamplerError),
        slow_processes("1 group", (2, 2), SamplerError),
        slow_processes("3 groups", (4, 4), ZeroDivisionError),
    ],
    ids=str,
)
def test_environments_go_on_where_they_were_when_the_policy_raised(kind, place, error) -> None:
    """The steps of an environment are the same as without the error, each once."""
    seen: list[list[Any]] = [[] for _ in range(B)]
    is_new: list[list[bool]] = [[] for _ in range(B)]

    def policy(step: PolicyInput) -> np.ndarray:
        columns = range(step.env_slice.start, step.env_slice.stop)
        if place == (step.t, place[1]) and place[1] in columns and errors:
            raise errors.pop()
        for b, observation, is_first in zip(columns, step.observation, step.is_first, strict=True):
            seen[b].append(observation.tolist())
            is_new[b].append(bool(is_first))
        return zeros(step)

    with make(kind) as sampler:
        errors = [error()]
        for _ in range(4):
            try:
                sampler.collect(policy)
            except error:
                assert not errors
        episodes = sorted(sampler.take_episodes())
        assert not errors and sampler.is_running
    with SerialSampler(ToyEnv, num_envs=B, horizon=4 * T, seed=3) as serial:
        rollout = serial.collect(zeros)
        steps = [len(each) for each in seen]
        assert 3 * T <= min(steps) and max(steps) <= 4 * T
        for b, number in enumerate(steps):
            assert seen[b] == rollout.observation[:number, b].tolist()
            ended = (rollout.terminated | rollout.truncated)[: number - 1, b].tolist()
            assert is_new[b] == [True, *ended]
        expected = []
        for b, number in enumerate(steps):
            ends = np.flatnonzero(rollout.episode_ended[:number, b]).tolist()
            for start, end in zip([0, *(end + 1 for end in ends)], ends, strict=False):
                expected.append((b, rollout.raw_reward[start : end + 1, b].sum(), end + 1 - start))
    assert [(e.env_index, e.episode_return, e.episode_length) for e in episodes] == sorted(expected)


@KINDS
def test_environments_that_wait_are_reset_after_an_error_of_the_policy(kind: str) -> None:
    """Games have three steps, so most end in the rollout that the policy does not finish."""
    games = partial(ScriptedEnv, "..t")

    def policy(step: PolicyInput) -> np.ndarray:
        if step.t == 4:
            raise ZeroDivisionError
        return zeros(step)

    with make(kind, games, reset_policy="wait") as sampler:
        with pytest.raises(ZeroDivisionError):
            sampler.collect(policy)
        rollout = sampler.collect(zeros)
        assert rollout.observation[0].tolist() == [[2, 0, 0]] * B
        assert rollout.valid.sum(axis=0).tolist() == [3] * B
        assert [episode.episode_length for episode in sampler.take_episodes()] == [3] * (2 * B)


@KINDS
def test_sampler_goes_on_after_ctrl_c_within_a_step_or_says_that_it_is_closed(kind: str) -> None:
    """A serial sampler's step is cut short, and nobody knows what its environment has done."""
    with make(kind, SlowEnv) as sampler:
        before = psutil.Process().children()

        def policy(step: PolicyInput) -> np.ndarray:
            if step.t == 2:
                signal.setitimer(signal.ITIMER_REAL, 0.02)
            return zeros(step)

        old = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                sampler.collect(policy)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        if kind == "serial":
            with pytest.raises(SamplerError, match=r"closed by an error .*KeyboardInterrupt"):
                sampler.collect(zeros)
            return
        sampler.take_episodes()
        first = sampler.collect(zeros)
        assert first.valid.all()
        same_episode = first.observation[1:, :, 1] == first.observation[:-1, :, 1]
        assert (first.observation[1:, :, 2] == first.observation[:-1, :, 2] + 1)[same_episode].all()
        assert psutil.Process().children() == before


# ---- more than actions ---------------------------------------------------------------------------


@KINDS
def test_extras_of_the_policy_are_in_the_rollout(kind: str) -> None:
    def policy(step: PolicyInput) -> PolicyOutput:
        values = torch.from_numpy(step.noise).float().requires_grad_()
        state = np.stack([step.observation[:, 0], np.full(len(values), step.t)], axis=1)
        return PolicyOutput(
            torch.zeros(len(values), dtype=torch.int64), {"value": values, "state": state}
        )

    with make(kind) as sampler:
        for _ in range(2):
            rollout = sampler.collect(policy)
        kept = rollout.copy()
        sampler.collect(policy)
    assert kept.extras.keys() == {"value", "state"}
    assert kept.extras["value"].shape == (T, B) and kept.extras["value"].dtype == np.float32
    assert len(np.unique(kept.extras["value"])) == T * B
    assert np.array_equal(kept.extras["state"][..., 0], kept.observation[:-1, :, 0])
    assert np.array_equal(kept.extras["state"][..., 1], np.arange(T)[:, None].repeat(B, axis=1))
    assert not np.array_equal(kept.extras["value"], rollout.extras["value"])


def without(step: PolicyInput) -> Any:
    return zeros(step)


def giving(*names: str, of: Any = None) -> Any:
    """A policy that gives extras of these names, each ``of`` or the noise."""
    return lambda step: PolicyOutput(
        zeros(step), dict.fromkeys(names, step.noise if of is None else of)
    )


@pytest.mark.parametrize(
    ("place", "other", "message"),
    [
        ((0, 0, 0), giving(), r"gave the extras \[.*\] before"),
        ((0, 0, 2), without, r"gave the extras \[.*\] before"),
        ((0, T - 1, 2), without, r"gave the extras \[.*\] before"),
        ((1, 0, 0), giving(), r"gave the extras \[.*\] before"),
        ((1, 2, 0), without, r"gave the extras \[\], and \['value'\] before"),
        ((0, 2, 0), giving("value", of=np.zeros(9)), r"value.* float64 \[9\]; .*float64 \[6\]"),
        ((0, 2, 0), giving("value", of=np.zeros(B, int)), r"as int64 \[6\]; .*float64"),
        ((0, 2, 0), giving("value", of=[object()] * B), "extra values that are no array"),
    ],
)
def test_extras_that_change_are_refused(place, other, message) -> None:
    number, t, first = place
    with make("serial") as sampler:
        for _ in range(number):
            sampler.collect(giving("value"))

        def policy(step: PolicyInput) -> Any:
            is_other = step.t == t and step.env_slice.start <= first < step.env_slice.stop
            return (other if is_other else giving("value"))(step)

        with pytest.raises(ValueError, match=message):
            sampler.collect(policy)


@KINDS
def test_extras_may_begin_with_a_later_rollout(kind: str) -> None:
    with make(kind) as sampler:
        assert sampler.collect(zeros).extras == {}
        assert (sampler.collect(giving("value")).extras["value"] > 0).all()
