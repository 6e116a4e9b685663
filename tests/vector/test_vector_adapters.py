"""Batches of other libraries: what they return through ours is what they return by themselves."""

import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from accel_rl.envs import Batched, Results, make_env_factory, probe_spec
from accel_rl.samplers import ParallelSampler, PolicyInput, SerialSampler
from accel_rl.vector import VectorEnv
from accel_rl.vector.adapters.ale import make_ale
from accel_rl.vector.adapters.envpool import make_envpool
from accel_rl.vector.adapters.gymnasium_vector import make_gymnasium_vector

N = 6
SEEDS = [np.random.SeedSequence(100 + i) for i in range(N)]
ALL = np.ones(N, np.bool_)


def policy(step: PolicyInput) -> Any:
    return (step.uniform * 2).astype(np.int64)


def play(batched: Batched, num_steps: int, num_actions: int) -> list[tuple[Any, ...]]:
    """Observation, results and final observations of each step, by our protocol."""
    simulators = batched.make(N)
    results = Results.allocate(simulators.spec, N)
    out = np.zeros((N, *simulators.spec.observation_shape), simulators.spec.observation_dtype)
    simulators.seed(SEEDS)
    simulators.reset(ALL, out)
    rng, steps = np.random.default_rng(0), [(out.copy(),)]
    for _ in range(num_steps):
        results.info.fill(np.nan)
        simulators.step(rng.integers(num_actions, size=N), out, results)
        steps.append((out.copy(), *(each.copy() for each in results)))
        if simulators.autoreset == "disabled" and results.episode_ended.any():
            simulators.reset(results.episode_ended, out)
    simulators.close()
    return steps


def assert_plays(steps: list[tuple[Any, ...]], env: Any, num_actions: int, seed: Any) -> int:
    """``steps`` are those of ``env``; return how many episodes ended."""
    rng, num_ended = np.random.default_rng(0), 0
    observation, _ = env.reset(seed=seed)
    assert np.array_equal(steps[0][0], observation)
    for mine in steps[1:]:
        step = env.step(rng.integers(num_actions, size=N))
        observation, reward, terminated, truncated, infos = step
        assert np.array_equal(mine[0], observation)
        assert np.array_equal(mine[2], reward.astype(np.float32))
        assert np.array_equal(mine[3], terminated) and np.array_equal(mine[4], truncated)
        ended = terminated | truncated
        assert np.array_equal(mine[5], ended)
        num_ended += int(ended.sum())
        if "final_obs" in infos:
            for i in np.flatnonzero(ended):
                assert np.array_equal(mine[7][i], infos["final_obs"][i])
        if env.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            env.reset(options={"reset_mask": ended})
    env.close()
    return num_ended


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
def test_gymnasium_vector_environment_in_each_mode_is_itself(mode):
    def make(n: int) -> SyncVectorEnv:
        one = lambda: gymnasium.make("CartPole-v1", disable_env_checker=True)  # noqa: E731
        return SyncVectorEnv([one] * n, autoreset_mode=mode)

    steps = play(Batched(make), 120, 2)
    assert assert_plays(steps, make(N), 2, [100 + i for i in range(N)]) > 10


def test_vectorised_environment_is_itself():
    steps = play(make_gymnasium_vector("CartPole-v1"), 120, 2)
    assert assert_plays(steps, gymnasium.make_vec("CartPole-v1", N), 2, 100) > 10


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_ale_is_itself(autoreset):
    from ale_py.vector_env import AtariVectorEnv

    options = {"max_num_frames_per_episode": 80, "num_threads": 1}
    steps = play(make_ale("breakout", autoreset=autoreset, **options), 50, 4)
    mode = {"next_step": "NextStep", "same_step": "SameStep"}[autoreset]
    env = AtariVectorEnv("breakout", N, autoreset_mode=mode, reward_clipping=False, **options)
    assert assert_plays(steps, env, 4, np.array([100 + i for i in range(N)])) > 5
    assert all((np.clip(each[2], -1, 1) == each[1]).all() for each in steps[1:])


@pytest.fixture
def no_tracker() -> Iterator[None]:
    """Ends Python's resource tracker, which asynchronous environments may leave behind."""
    yield
    resource_tracker._resource_tracker._stop()


@pytest.mark.usefixtures("no_tracker")
@pytest.mark.parametrize("kind", [SerialSampler, ParallelSampler])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_gymnasium_environments_that_the_sampler_resets_equal_single_ones(kind, mode):
    options = {"num_envs": 4, "horizon": 30, "num_groups": 2, "seed": 3}
    if kind is ParallelSampler:
        options["num_workers"] = 2
    batched = make_gymnasium_vector("CartPole-v1", vectorization_mode=mode)
    with (
        SerialSampler("CartPole-v1", **options) as single,
        kind(batched, **options) as batch,
    ):
        for _ in range(3):
            one, other = single.collect(policy), batch.collect(policy)
            for name in ("observation", "action", "reward", "terminated", "truncated", "valid"):
                assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert one.episode_ended.any()


def test_batch_with_actions_that_are_arrays():
    options = {"num_envs": 2, "horizon": 5, "num_groups": 1, "decorrelation_steps": 3}
    rollouts = []
    for env in ("Pendulum-v1", "gymnasium-vec:Pendulum-v1"):
        with SerialSampler(env, **options) as sampler:
            rollouts.append(sampler.collect(lambda step: 4 * step.uniform[:, None] - 2))
    for name in ("observation", "action", "reward"):
        assert np.array_equal(*(getattr(each, name) for each in rollouts)), name


def test_gymnasium_environments_can_wait():
    options = {"num_envs": 4, "horizon": 40, "num_groups": 1, "reset_policy": "wait"}
    batched = make_gymnasium_vector("CartPole-v1", vectorization_mode="sync")
    with SerialSampler(batched, **options) as sampler:
        for _ in range(3):
            rollout = sampler.collect(policy)
            assert rollout.episode_ended.sum(axis=0).max() == 1 and not rollout.valid.all()
            assert (np.abs(rollout.observation[0]) <= 0.05).all()  # that of a reset


def test_vector_env_of_a_name_steps_the_vectorised_environment():
    env = VectorEnv("gymnasium-vec:CartPole-v1", 4, num_workers=0)
    try:
        observation, _ = env.reset(seed=5)
        assert observation in env.observation_space
        steps = [env.step(np.ones(4, np.int64)) for _ in range(20)]
        assert any(step[2].any() for step in steps)
    finally:
        env.close()


def test_names_of_batches_are_environments():
    spec = probe_spec(make_env_factory("gymnasium-vec:CartPole-v1"))
    assert (spec.name, spec.num_actions) == ("gymnasium-vec:CartPole-v1", 2)
    spec = probe_spec(make_env_factory("gymnasium-vec:ALE/Pong-v5"))
    assert spec.observation_dtype == np.uint8


def test_numbers_in_the_infos_of_a_batch_are_kept():
    batched = make_gymnasium_vector(
        "ALE/Breakout-v5", info_keys=("lives", "never"), vectorization_mode="vector_entry_point"
    )
    with SerialSampler(batched, num_envs=2, horizon=3, num_groups=1) as sampler:
        info = sampler.collect(policy).info
    assert (info[..., 0] == 5).all() and np.isnan(info[..., 1]).all()


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: make_env_factory("gymnasium-vec:CartPol-v1"),
            "gymnasium-vec:CartPol-v1.*use an id",
        ),
        (lambda: make_gymnasium_vector("Blackjack-v1").make(2), "observations are.*one array"),
        (lambda: make_ale("breakot"), "game is 'breakot'"),
        (lambda: make_ale("pong", autoreset="disabled"), "autoreset is 'disabled'"),
        (lambda: make_ale("pong", reward_clipping=True), "reward_clipping cannot be given"),
        (
            lambda: Batched(lambda n: gymnasium.make_vec("CartPole-v1", n + 1)).make(2),
            "num_envs=3; it must have 2",
        ),
    ],
)
def test_what_cannot_be_a_batch_is_one_message(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_envpool_that_is_not_installed_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ValueError, match=r"env=envpool:Breakout-v5.*accel_rl\[envpool\]"):
        make_env_factory("envpool:Breakout-v5")


# ---- EnvPool -------------------------------------------------------------------------------------

NEEDS_ENVPOOL = "needs EnvPool: pip install accel_rl[envpool]"


@pytest.fixture
def envpool() -> Any:
    return pytest.importorskip("envpool", reason=NEEDS_ENVPOOL)


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_envpool_is_itself(envpool):
    steps = play(make_envpool("CartPole-v1", num_threads=1), 120, 2)
    env = envpool.make_gymnasium("CartPole-v1", num_envs=N, env_seed=[100 + i for i in range(N)])
    rng = np.random.default_rng(0)
    assert np.array_equal(steps[0][0], env.reset()[0])
    for mine in steps[1:]:
        observation, reward, terminated, truncated, _ = env.step(rng.integers(2, size=N))
        assert np.array_equal(mine[0], observation) and np.array_equal(mine[2], reward)
        assert np.array_equal(mine[5], terminated | truncated)


@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize("reset_policy", ["immediate", "wait"])
def test_envpool_is_the_same_however_workers_divide_it(envpool, reset_policy):
    options = {"num_envs": 6, "horizon": 40, "num_groups": 1, "seed": 3}
    options["reset_policy"] = reset_policy
    batched = make_envpool("CartPole-v1", autoreset="disabled")
    with (
        SerialSampler(batched, **options) as serial,
        ParallelSampler(batched, num_workers=3, **options) as parallel,
    ):
        for _ in range(3):
            one, other = serial.collect(policy), parallel.collect(policy)
            for name in ("observation", "reward", "terminated", "valid"):
                assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert one.episode_ended.any()


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_envpool_messages(envpool):
    with pytest.raises(ValueError, match=r"env=envpool:Breakot-v5 is no task.*list_all_envs"):
        make_env_factory("envpool:Breakot-v5")
    with pytest.raises(ValueError, match="option noop_mx cannot be given"):
        make_envpool("Breakout-v5", noop_mx=3)
    with pytest.raises(ValueError, match="autoreset is 'same_step'"):
        make_envpool("Breakout-v5", autoreset="same_step")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_envpool_breakout_clips_rewards_for_the_learner_alone(envpool):
    steps = play(make_envpool("Breakout-v5", num_threads=1, info_keys=("lives",)), 300, 4)
    raw = np.concatenate([each[2] for each in steps[1:]])
    clipped = np.concatenate([each[1] for each in steps[1:]])
    assert raw.max() >= 1 and np.array_equal(np.clip(raw, -1, 1), clipped)
    assert steps[1][6][0, 0] == 5
