"""Environments that are stepped as a batch give the rollouts that they give in a loop."""

import os
import signal
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
from batches import LoopBatch, Walk, Walks, make_walks
from sampler_cases import KINDS, assert_same_rollouts
from space_envs import SpaceEnv
from telling_envs import KEYS, TellingEnv
from tiers import PROCESSES, processes, slow, slow_processes
from toy_envs import ScriptedEnv, ToyEnv
from vector_play import play_both

from accel_rl.envs import Batched, EnvSpec, make_env_factory, probe_spec
from accel_rl.samplers import (
    ParallelSampler,
    PolicyInput,
    SamplerConfig,
    SamplerError,
    SerialSampler,
)
from accel_rl.spaces import Leaf, discrete
from accel_rl.vector import VectorEnv

T, B = 7, 12


def config(reset_policy: Any = "immediate", groups: int = 1, **options: Any) -> SamplerConfig:
    return SamplerConfig(
        num_envs=B, horizon=T, num_groups=groups, reset_policy=reset_policy, **options
    )


def policy(step: PolicyInput) -> Any:
    observed = np.abs(step.observation.sum(axis=1).astype(np.int64))
    return (observed + (step.noise * 2).astype(np.int64)) % 2


def test_random_first_steps_of_a_batch_are_actions_of_its_space() -> None:
    make = make_env_factory(partial(SpaceEnv, "integers"))  # from 1 on, or it fails
    with SerialSampler(batch_of(make), config=config(decorrelation_steps=20)) as sampler:
        assert sampler.collect(lambda step: np.ones((len(step.noise), 3), int)).valid.all()


def batch_of(make: Any, autoreset: str = "disabled") -> Batched:
    return Batched(partial(LoopBatch, make=make, autoreset=autoreset))


SCRIPTED = partial(ScriptedEnv, ".l.t", ".c", "b", ".....c")
TELLING = make_env_factory(TellingEnv, info_keys=KEYS)
WALKS = Batched(Walks)
ONE = {"num_workers": 1}


@pytest.mark.parametrize(
    "kind, single, batch, options",
    [
        (SerialSampler, Walk, WALKS, {"groups": 2, "decorrelation_steps": 11}),
        (SerialSampler, Walk, WALKS, {"reset_policy": "wait"}),
        (SerialSampler, ToyEnv, batch_of(ToyEnv), {}),
        (SerialSampler, SCRIPTED, batch_of(SCRIPTED), {}),
        (SerialSampler, TELLING, batch_of(TELLING, "same_step"), {}),
        (SerialSampler, SCRIPTED, batch_of(SCRIPTED, "same_step"), {}),
        processes(ParallelSampler, Walk, WALKS, {**ONE, "reset_policy": "wait", "groups": 2}),
        slow_processes(ParallelSampler, Walk, WALKS, {"num_workers": 3}),
        slow_processes(ParallelSampler, Walk, WALKS, {"groups": 3}),
        slow_processes(ParallelSampler, ToyEnv, batch_of(ToyEnv, "same_step"), ONE),
        slow_processes(ParallelSampler, TELLING, batch_of(TELLING, "same_step"), ONE),
    ],
)
def test_rollouts_of_a_batch_equal_those_of_a_loop(kind, single, batch, options):
    """Also with lost lives, truncations and infos."""
    with (
        SerialSampler(single, config=config(**options), seed=3) as loop,
        kind(batch, config=config(**options), seed=3) as other,
    ):
        num_truncated = 0
        for _ in range(12):
            rollout = loop.collect(policy)
            num_truncated += int((rollout.final_step >= 0).sum())
            assert_same_rollouts(rollout, other.collect(policy))
            assert loop.take_episodes() == other.take_episodes()
        assert num_truncated > 3


@KINDS
def test_batch_that_resets_in_the_next_step_leaves_that_step_out(kind):
    """Its other steps are those of a loop, and their order is the same."""
    games = partial(ScriptedEnv, ".l.t", ".c", "b", ".....c", "...t")
    options = SamplerConfig(num_envs=3, horizon=36, num_groups=1, num_workers=1)
    steps = []

    def noting(step: PolicyInput) -> Any:
        steps.append(step.is_first.copy())
        return np.zeros(len(step.noise), np.int64)

    with (
        SerialSampler(games, config=options) as loop,
        kind(batch_of(games, "next_step"), config=options) as other,
    ):
        expected, found = loop.collect(noting), other.collect(noting)
        is_first, found_first = np.split(np.stack(steps), 2)
        for b in range(3):
            taken = found.valid[:, b]
            assert taken.tolist() == [True, *~found.episode_ended[:-1, b]]
            for name in ("observation", "reward", "terminated", "truncated", "episode_ended"):
                one, both = getattr(expected, name)[: taken.sum(), b], getattr(found, name)[:36, b]
                assert np.array_equal(one, both[taken])
                assert name == "observation" or not both[~taken].any()
            assert not (is_first[: taken.sum(), b] & ~found_first[taken, b]).any()
            assert found_first[~taken, b].all()
        for t, b in np.argwhere(found.truncated & ~found.terminated):
            (slot,) = np.flatnonzero(found.final_step[:, b] == t)
            final = found.final_observation[slot, b]
            assert np.array_equal(final, found.observation[t + 1, b])
        lengths = [each.episode_length for each in other.take_episodes() if each.env_index == 0]
        assert lengths[:5] == [4, 2, 1, 6, 4]


@PROCESSES
@pytest.mark.parametrize(
    "autoreset, reset_policy, num_workers",
    [("disabled", "wait", 1), slow("next_step", "immediate", 2), slow("same_step", "immediate", 2)],
)
def test_batch_of_a_killed_worker_is_replaced(autoreset, reset_policy, num_workers):
    options = config(reset_policy, num_workers=num_workers, on_worker_failure="restart")
    calls = []

    def killing(step: PolicyInput) -> Any:
        calls.append(step.t)
        if len(calls) == 3:
            workers = sampler._pool._workers.processes
            os.kill(workers[0].pid, signal.SIGKILL)
        return policy(step)

    with ParallelSampler(batch_of(Walk, autoreset), config=options, seed=2) as sampler:
        rollouts = [sampler.collect(killing).copy() for _ in range(5)]
        assert sampler.generation == 1
    lost = ~rollouts[0].valid[:, :6]
    assert lost.any() and rollouts[0].truncated[:, :6].any()
    assert rollouts[-1].valid.any(axis=0).all()


def test_states_of_a_batch_that_cannot_tell_are_none():
    with SerialSampler(batch_of(Walk), config=config()) as sampler:
        sampler.collect(policy)
        assert sampler.get_state().environments == [None] * B


@pytest.mark.parametrize(
    "mode, own, num_workers",
    [
        ("NextStep", "disabled", 0),
        ("NextStep", "same", 0),
        ("SameStep", "disabled", 0),
        ("Disabled", "disabled", 0),
        processes("SameStep", "same", 1),
        slow_processes("NextStep", "same", 2),
        slow_processes("Disabled", "disabled", 2),
    ],
)
def test_vector_env_of_a_batch_equals_that_of_a_loop(mode, own, num_workers):
    autoreset = {"NextStep": "next_step", "SameStep": "same_step", "Disabled": "disabled"}[mode]
    batch = batch_of(Walk, "disabled" if own == "disabled" else autoreset)
    actions = np.random.default_rng(0).integers(2, size=(40, 6))
    with (
        closing(VectorEnv(Walk, 6, num_workers=0, autoreset_mode=mode)) as one,
        closing(VectorEnv(batch, 6, num_workers=num_workers, autoreset_mode=mode)) as other,
    ):
        for seed in (4, None, [3, 1, 4, 1, 5, 9]):
            play_both(one, other, actions, seed, ("raw_reward", "episode_ended"))


MASK = np.array([True, False, True, True])


def reset_some(autoreset: str, mode: str, **options: Any) -> None:
    batch = batch_of(Walk, autoreset)
    with closing(VectorEnv(batch, 4, num_workers=0, autoreset_mode=mode)) as env:
        env.reset()
        env.reset(options={"reset_mask": MASK}, **options)


@pytest.mark.parametrize(
    "use, tokens",
    [
        (lambda: VectorEnv(batch_of(Walk, "next_step"), 4, autoreset_mode="SameStep"), "SameStep"),
        (lambda: VectorEnv(batch_of(Walk, "same_step"), 4, autoreset_mode="NextStep"), "NextStep"),
        (lambda: VectorEnv(batch_of(Walk, "next_step"), 4, autoreset_mode="Disabled"), "Disabled"),
        (lambda: reset_some("next_step", "NextStep"), "reset_mask.*autoreset='disabled'"),
        (lambda: reset_some("disabled", "Disabled", seed=3), "give a seed to all"),
        (lambda: SerialSampler(batch_of(Walk, "next_step"), config=config("wait")), "immediate"),
        (lambda: ParallelSampler(batch_of(Walk, "same_step"), config=config("wait")), "immediate"),
        (lambda: SerialSampler(batch_of(Walk, "never")), "autoreset='never'.*disabled, next_step"),
        (lambda: SerialSampler(Batched(lambda n: "batch")), "is a str.*accel_rl.envs.Simulators"),
        (lambda: SerialSampler(Batched(lambda n: 1 / 0)), "constructor: ZeroDivisionError"),
        (lambda: Batched(3), "make is 3; .*a function"),
        (
            lambda: probe_spec(make_env_factory("batches:make_walks", info_keys=("x",))),
            "info_keys=.*leave info_keys out",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_what_a_batch_cannot_do_is_refused(use, tokens):
    with pytest.raises(ValueError, match=tokens):
        use()


def end(results: Any, *, truncated: bool) -> None:
    """The flags of an end that do not go together."""
    results.terminated[2], results.truncated[2] = False, truncated
    results.episode_ended[2] = not truncated


def fail(_: Any) -> None:
    raise RuntimeError("the simulator broke")


class Broken(Walks):
    """Goes wrong in its third step, or has one too many."""

    def __init__(self, n: int, fault: Any) -> None:
        super().__init__(n + (fault is None))
        self.fault, self.num_steps = fault, 0

    def reset(self, mask: Any, out: Any) -> None:
        if self.fault is not None:
            super().reset(mask, out)

    def step(self, action: Any, out: Any, results: Any) -> None:
        super().step(action, out, results)
        self.num_steps += 1
        if self.num_steps == 3:
            self.fault(results)


@pytest.mark.parametrize(
    "kind, fault, message",
    [
        (SerialSampler, lambda r: np.put(r.reward, 2, np.nan), r"reward nan for environment 2"),
        (SerialSampler, lambda r: np.put(r.raw_reward, 2, np.inf), "raw_reward inf .*finite"),
        (SerialSampler, partial(end, truncated=True), "environment 2.*goes with truncated"),
        (SerialSampler, partial(end, truncated=False), "environment 2.*goes with truncated"),
        (SerialSampler, fail, "environments 0 to 11.*failed in step: RuntimeError"),
        (SerialSampler, None, "environments 0 to 11.*failed in step: ValueError"),
        processes(ParallelSampler, fail, "worker 0.*environments 0 to 11.*RuntimeError: the sim"),
    ],
)
def test_batch_that_goes_wrong_is_one_message(kind, fault, message):
    options = config(num_workers=1)
    with pytest.raises(SamplerError, match=message):
        with kind(Batched(partial(Broken, fault=fault)), config=options) as sampler:
            for _ in range(3):
                sampler.collect(policy)


@PROCESSES
def test_name_of_a_function_that_returns_a_batch_is_an_environment():
    factory = make_env_factory("batches:make_walks")
    assert probe_spec(factory).name == "walk"
    with (
        SerialSampler(Walk, config=config(), seed=1) as loop,
        ParallelSampler(factory, config=config(num_workers=1), seed=1) as named,
        SerialSampler(make_env_factory(make_walks), config=config(), seed=1) as made,
    ):
        rollout = loop.collect(policy)
        assert_same_rollouts(rollout, named.collect(policy))
        assert_same_rollouts(rollout, made.collect(policy))


# ---- one pool, several games ---------------------------------------------------------------------


class Numbered(Walk):
    """Begins at its number."""

    def __init__(self, env_index: int) -> None:
        self.env_index = env_index

    def reset(self, out: Any) -> None:
        self.x, self.t = 0, 0
        out[:] = self.env_index, 0


class NumberedBatch(Walks):
    def __init__(self, n: int, first_index: int) -> None:
        super().__init__(n)
        self.numbers = np.arange(first_index, first_index + n)

    def reset(self, mask: Any, out: Any) -> None:
        out[mask, 0], out[mask, 1] = self.numbers[mask], 0


BATCHED = Batched(NumberedBatch, indexed=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, factory",
    [
        (SerialSampler, Numbered),
        (SerialSampler, make_env_factory(Numbered)),
        (SerialSampler, BATCHED),
        processes(ParallelSampler, BATCHED),
        slow_processes(ParallelSampler, Numbered),
    ],
)
def test_factory_gets_the_index_of_each_environment(kind, factory):
    with kind(factory, config=config(groups=2, num_workers=2)) as sampler:
        rollout = sampler.collect(policy)
    assert rollout.observation[0, :, 0].tolist() == list(range(B))


class Other(Walk):
    spec = EnvSpec(name="other", observation=Leaf((2,), np.float32), action=discrete(3))


@KINDS
def test_environments_that_differ_are_one_message(kind):
    def make(env_index: int) -> Walk:
        return Walk() if env_index < 9 else Other()

    with pytest.raises(SamplerError, match=r"environment 9.*action is .* 2 and not .* 1"):
        with kind(make, config=config(num_workers=1)):
            pass
