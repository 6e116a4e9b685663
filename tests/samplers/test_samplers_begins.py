"""Samplers tell policies which observations are the first of their episodes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from sampler_cases import T as ROWS
from sampler_cases import lose_worker, make, make_sampler, zeros
from tiers import PROCESSES, processes, slow, slow_processes
from toy_envs import ScriptedEnv, ToyEnv

from accel_rl.samplers import PolicyInput, SamplerState
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.system.states import decode_state, encode_state

Told = dict[tuple[int, int], bool]
"""by step since the start, and environment"""


def collect(sampler: RolloutSampler, number: int, check: Callable[[PolicyInput], None]) -> Told:
    """What a policy was told in ``number`` rollouts, of steps that were taken."""
    told: Told = {}
    T = sampler.config.horizon
    for i in range(number):
        is_first = np.zeros((T, sampler.config.num_envs), np.bool_)

        def policy(step: PolicyInput, is_first: Any = is_first) -> Any:
            is_first[step.t, step.env_slice] = step.is_first
            check(step)
            return np.zeros(len(step.noise), np.int64)

        rollout = sampler.collect(policy)
        told |= {
            (i * T + int(t), int(b)): bool(is_first[t, b])
            for t, b in zip(*np.nonzero(rollout.valid), strict=True)
        }
    return told


def nothing(step: PolicyInput) -> None:
    pass


@pytest.mark.parametrize(
    "kind, reset_policy",
    [
        ("serial", "immediate"),
        ("serial", "wait"),
        processes("1", "wait"),
        slow_processes("2", "immediate"),
    ],
)
def test_episodes_begin_after_resets_and_lost_lives(kind: str, reset_policy: str) -> None:
    """ToyEnv's step number is 0 after a reset, and a life is lost at every third one."""
    seen = {"first": 0, "life": 0, "other": 0}
    with make(ToyEnv, kind, reset_policy) as sampler:
        episodes: dict[int, int] = {}

        def check(step: PolicyInput) -> None:
            for b, (_, episode, t), is_first in zip(
                range(step.env_slice.start, step.env_slice.stop),
                step.observation,
                step.is_first,
                strict=True,
            ):
                if episode == 0:  # it waits
                    continue
                is_new = episodes.get(b) != episode
                assert is_new == (t == 0) or b not in episodes  # random steps come first
                episodes[b] = int(episode)
                assert is_first == (is_new or t % 3 == 0)
                seen["first" if is_new else "life" if is_first else "other"] += 1

        collect(sampler, 12, check)
    assert min(seen.values()) > 10


@pytest.mark.parametrize(
    "kind, reset_policy", [("serial", "immediate"), ("serial", "wait"), slow_processes("2", "wait")]
)
def test_sampler_that_goes_on_from_a_state_tells_the_same(kind: str, reset_policy: str) -> None:
    """Also where the last step before lost a life or ended a game."""
    factory = partial(Saved, "..l..t", ".t", "l.l.t")
    with make(factory, kind, reset_policy) as sampler:
        expected = collect(sampler, 8, nothing)
    for number in range(1, 8) if kind == "serial" else (4,):
        with make(factory, kind, reset_policy) as sampler:
            first = collect(sampler, number, nothing)
            state = decode_state(encode_state(sampler.get_state()._asdict()))
            T = sampler.config.horizon
        with_state = make(factory, kind, reset_policy, seed=99)
        try:
            with_state.start(SamplerState(**state))
            following = collect(with_state, 8 - number, nothing)
        finally:
            with_state.close()
        assert first | {(i + number * T, b): x for (i, b), x in following.items()} == expected
    assert set(expected.values()) == {False, True}


def test_environments_begin_anew_with_a_state_of_before_there_was_such_a_thing() -> None:
    factory = partial(Saved, "." * 100 + "t")
    with make(factory, "serial") as sampler:
        collect(sampler, 1, nothing)
        state = sampler.get_state()
    other = make(factory, "serial")
    other.start(state._replace(is_first=None, environments=[*state.environments[:3], None]))
    told = collect(other, 1, nothing)
    other.close()
    assert [told[0, b] for b in range(4)] == [False, False, False, True]


def told_by_row(sampler: RolloutSampler, policy: Any = zeros) -> np.ndarray:
    """What the policy is told in one rollout, ``[T, B]``."""
    is_first = np.zeros((ROWS, sampler.config.num_envs), np.bool_)

    def telling(step: PolicyInput) -> Any:
        is_first[step.t, step.env_slice] = step.is_first
        return policy(step)

    sampler.collect(telling)
    return is_first


@PROCESSES
@pytest.mark.parametrize("reset_policy", ["wait", slow("immediate")])
def test_environments_of_a_worker_lost_between_rollouts_begin_anew(reset_policy: str) -> None:
    with make_sampler(reset_policy=reset_policy) as sampler:
        assert told_by_row(sampler)[0].all()  # the first ones of all
        assert not told_by_row(sampler)[0].all()
        lose_worker(sampler, after_order_of=1)
        sampler.get_state()
        assert told_by_row(sampler)[0].all()
        assert not told_by_row(sampler)[0].all()


@PROCESSES
def test_environments_of_a_worker_lost_within_a_rollout_begin_anew_in_the_next_row() -> None:
    def losing(step: PolicyInput) -> Any:
        if step.t == 2 and step.env_slice.start == 4:  # group 1 has not got its step yet
            lose_worker(sampler, after_order_of=0)
        return zeros(step)

    with make_sampler() as sampler:
        told_by_row(sampler)
        is_first = told_by_row(sampler, losing)
        assert np.array_equal(is_first, sampler.rollout.observation[:ROWS, :, 2] == 0)
        assert is_first[3:].any(axis=0).all()  # of all environments there is another one
        assert not is_first[4].all()


class Saved(ScriptedEnv):
    """Its state can be saved."""

    def get_state(self) -> dict[str, Any]:
        return {"game": self.game, "life": self.life, "t": self.t, "left": "".join(self.letters)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.game, self.life, self.t = state["game"], state["life"], state["t"]
        self.letters = iter(state["left"])
