"""Batches of other libraries: what they return through ours is what they return by themselves."""

import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from multiprocessing import resource_tracker
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from sampler_cases import assert_same_rollouts
from space_envs import MaskedEnv, SpaceEnv, checksum
from tiers import PROCESSES, SLOW, processes, slow_processes
from vector_play import play_both

from accel_rl.envs import Batched, Results, make_env_factory, probe_spec
from accel_rl.samplers import ParallelSampler, PolicyInput, SamplerError, SerialSampler
from accel_rl.spaces import views, zeros
from accel_rl.vector import VectorEnv
from accel_rl.vector.adapters.envpool import EnvPool, make_envpool
from accel_rl.vector.adapters.gymnasium_vector import make_gymnasium_vector

N = 6
SEEDS = [np.random.SeedSequence(100 + i) for i in range(N)]
ALL = np.ones(N, np.bool_)
ONE = {"num_workers": 1}


class Noisy(gymnasium.Env[Any, Any]):
    """Each step and each reset draws a random number; an episode ends with a small one."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.look(), {}

    def look(self) -> Any:
        self.number = self.np_random.random(1, np.float32)
        return self.number

    def step(self, action: Any) -> Any:
        return self.look(), 1.0, bool(self.number < 0.1), bool(self.number > 0.95), {}


gymnasium.register("Noisy-v0", Noisy)


def policy(step: PolicyInput) -> Any:
    return (step.noise * 2).astype(np.int64)


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


@pytest.fixture
def no_tracker() -> Iterator[None]:
    """Ends Python's resource tracker, which asynchronous environments may leave behind."""
    yield
    resource_tracker._resource_tracker._stop()


class NestedEnv(SpaceEnv):
    """Observations are nested mappings and tuples; actions are integers."""

    def __init__(self) -> None:
        super().__init__("dict")
        self.action_space = gymnasium.spaces.Discrete(2)


MAPPINGS: dict[str, Any] = {"nested": NestedEnv, "masked": partial(MaskedEnv, "discrete")}


def vector_of(name: str, mode: AutoresetMode) -> Batched:
    return Batched(lambda n: SyncVectorEnv([MAPPINGS[name]] * n, autoreset_mode=mode))


def allowed(step: PolicyInput) -> Any:
    if "action_mask" in step.observation.dtype.names:
        return step.observation["action_mask"].argmax(1)
    return policy(step)


def sync_cart_poles(mode: AutoresetMode, n: int = N) -> SyncVectorEnv:
    one = lambda: gymnasium.make("CartPole-v1", disable_env_checker=True)  # noqa: E731
    return SyncVectorEnv([one] * n, autoreset_mode=mode)


@pytest.mark.parametrize(
    "batched, make, mode",
    [
        *(
            (Batched(partial(sync_cart_poles, m)), partial(sync_cart_poles, m), m)
            for m in AutoresetMode
        ),
        (
            make_gymnasium_vector("CartPole-v1"),
            lambda: gymnasium.make_vec("CartPole-v1", N),
            AutoresetMode.NEXT_STEP,
        ),
    ],
)
def test_gymnasium_vector_environment_in_each_mode_is_itself(batched, make, mode):
    actions = np.random.default_rng(0).integers(2, size=(120, N))
    ours, theirs = VectorEnv(batched, N, num_workers=0, autoreset_mode=mode), make()
    with closing(ours), closing(theirs):
        play_both(ours, theirs, actions, seed=100)


SYNC = make_gymnasium_vector("CartPole-v1", vectorization_mode="sync")
PENDULUM = make_gymnasium_vector("Pendulum-v1")
NESTED, MASKED = (vector_of(name, AutoresetMode.DISABLED) for name in MAPPINGS)


def noisy(mode: str) -> Batched:
    return make_gymnasium_vector("Noisy-v0", vectorization_mode=mode)


@pytest.mark.usefixtures("no_tracker")
@pytest.mark.parametrize(
    "kind, single, batched, policy, options",
    [
        (SerialSampler, "Noisy-v0", noisy("sync"), policy, {}),
        (SerialSampler, "Noisy-v0", noisy("sync"), policy, {"reset_policy": "wait"}),
        slow_processes(SerialSampler, "Noisy-v0", noisy("async"), policy, {}),
        slow_processes(SerialSampler, "Noisy-v0", noisy("async"), policy, {"reset_policy": "wait"}),
        processes(ParallelSampler, "CartPole-v1", SYNC, policy, ONE),
        (SerialSampler, NestedEnv, NESTED, policy, {}),
        (SerialSampler, MAPPINGS["masked"], MASKED, allowed, {}),
        slow_processes(ParallelSampler, NestedEnv, NESTED, policy, ONE),
        slow_processes(ParallelSampler, MAPPINGS["masked"], MASKED, allowed, ONE),
        (SerialSampler, "Pendulum-v1", PENDULUM, lambda step: 4 * step.noise[:, None] - 2, {}),
    ],
)
def test_gymnasium_environments_that_the_sampler_resets_equal_single_ones(
    kind, single, batched, policy, options
):
    options = {"num_envs": 4, "horizon": 40, "num_groups": 2, "seed": 3, **options}
    with SerialSampler(single, **options) as one, kind(batched, **options) as other:
        for _ in range(3):
            rollout = one.collect(policy)
            assert_same_rollouts(rollout, other.collect(policy))
            assert rollout.episode_ended.any() or single == "Pendulum-v1"
            assert rollout.valid.all() == ("reset_policy" not in options)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_batch_of_mappings_that_resets_itself_is_itself(mode):
    """Final observations, too, which Gymnasium returns environment by environment."""
    simulators = vector_of("nested", mode).make(N)
    env = SyncVectorEnv([NestedEnv] * N, autoreset_mode=mode)
    space, results = simulators.spec.observation, Results.allocate(simulators.spec, N)
    out = zeros(space, N)
    simulators.seed(SEEDS)
    simulators.reset(ALL, out)
    assert checksum(views(space, out)) == checksum(env.reset(seed=[100 + i for i in range(N)])[0])
    num_ended = 0
    for _ in range(30):
        simulators.step(np.zeros(N, np.int64), out, results)
        observation, _, terminated, truncated, infos = env.step(np.zeros(N, np.int64))
        assert checksum(views(space, out)) == checksum(observation)
        if mode is AutoresetMode.SAME_STEP:
            for i in np.flatnonzero(terminated | truncated):
                final = views(space, results.final_observation[i])
                assert checksum(final) == checksum(infos["final_obs"][i])
                num_ended += 1
    assert num_ended > 10 or mode is AutoresetMode.NEXT_STEP


def test_mapping_that_a_batch_leaves_incomplete_is_one_message():
    class Broken(SyncVectorEnv):
        def reset(self, **options: Any) -> Any:
            observation, info = super().reset(**options)
            return {"camera": observation["camera"]}, info

    batched = Batched(lambda n: Broken([NestedEnv] * n, autoreset_mode=AutoresetMode.DISABLED))
    with pytest.raises(
        SamplerError, match=r"got observations of type dict \['camera'\]; .* the keys"
    ):
        SerialSampler(batched, num_envs=2, horizon=3).start()


class FakePool:
    """What EnvPool returns of mappings, from Gymnasium's own vector environment."""

    def __init__(self, num_envs: int, env_seed: list[int], **_: Any) -> None:
        self.env = SyncVectorEnv([NestedEnv] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
        self.seeds: Any = env_seed

    def reset(self, ids: Any) -> Any:
        mask = np.isin(np.arange(self.env.num_envs), ids)
        observation, infos = self.env.reset(seed=self.seeds, options={"reset_mask": mask})
        self.seeds = None
        return self.of(observation, ids), infos

    def of(self, tree: Any, ids: Any) -> Any:
        if isinstance(tree, dict):
            return {name: self.of(each, ids) for name, each in tree.items()}
        return tuple(self.of(each, ids) for each in tree) if isinstance(tree, tuple) else tree[ids]

    def step(self, action: Any) -> Any:
        return self.env.step(action)

    def close(self) -> None:
        self.env.close()


def test_envpool_with_observations_that_are_mappings_is_stepped(monkeypatch):
    """EnvPool has none of these itself in what can be installed everywhere: a fake of it."""
    fake = SimpleNamespace(
        make_spec=lambda *_, **__: SimpleNamespace(
            config=SimpleNamespace(),
            gymnasium_observation_space=NestedEnv().observation_space,
            gymnasium_action_space=NestedEnv().action_space,
        ),
        make_gymnasium=lambda _, num_threads, **options: FakePool(**options),
    )
    monkeypatch.setitem(sys.modules, "envpool", fake)
    simulators: Any = EnvPool("Fake-v0", "disabled", 1, (), {}, N)
    space, results = simulators.spec.observation, Results.allocate(simulators.spec, N)
    out = zeros(space, N)
    simulators.seed(SEEDS)
    simulators.reset(ALL, out)
    simulators.step(np.zeros(N, np.int64), out, results)
    before, some = out.copy(), np.arange(N) % 2 == 0
    simulators.reset(some, out)
    env = simulators._pool.env
    assert checksum(views(space, out)) == checksum(env._observations)
    kept, was, new = (
        checksum(views(space, each)) for each in (out[~some], before[~some], out[some])
    )
    assert kept == was != new
    simulators.close()


def test_vector_environment_that_cannot_rest_does_not_wait():
    class Own(SyncVectorEnv):  # of which nothing is known
        unwrapped = None

    def make(n: int) -> SyncVectorEnv:
        one = lambda: gymnasium.make("CartPole-v1")  # noqa: E731
        return Own([one] * n, autoreset_mode=AutoresetMode.DISABLED)

    with pytest.raises(ValueError, match=r"reset_policy is wait, and .* cannot leave .*immediate"):
        SerialSampler(Batched(make), num_envs=2, reset_policy="wait")
    with pytest.raises(ValueError, match=r"autoreset_mode is NextStep, .* cannot leave .*SameStep"):
        VectorEnv(Batched(make), 2, num_workers=0)
    VectorEnv(Batched(make), 2, num_workers=0, autoreset_mode="SameStep").close()


def test_names_of_batches_are_environments():
    spec = probe_spec(make_env_factory("gymnasium-vec:CartPole-v1"))
    assert (spec.name, spec.num_actions) == ("gymnasium-vec:CartPole-v1", 2)
    spec = probe_spec(make_env_factory("gymnasium-vec:ALE/Pong-v5"))
    assert spec.observation_dtype == np.uint8


@SLOW
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
            "CartPol-v1 is neither.*did you mean CartPole-v1",
        ),
        (
            lambda: Batched(lambda n: SyncVectorEnv([partial(SpaceEnv, "dict")] * n)).make(2),
            "its actions are.*one array",
        ),
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
@PROCESSES
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


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, processes(2)])
def test_environments_of_a_batch_cannot_be_reached_one_by_one(num_workers):
    def cart_poles(n: int) -> SyncVectorEnv:
        make = lambda: gymnasium.make("CartPole-v1")  # noqa: E731
        return SyncVectorEnv([make] * n, autoreset_mode=AutoresetMode.DISABLED)

    with closing(VectorEnv(Batched(cart_poles), 4, num_workers=num_workers)) as envs:
        for use in (
            lambda: envs.get_attr("gravity"),
            lambda: envs.set_attr("gravity", 1.0),
            lambda: envs.call("render"),
        ):
            with pytest.raises(TypeError, match=r"environment 0 .*cannot be reached one by one"):
                use()
        envs.reset(seed=1)
        with pytest.raises(TypeError, match="cannot be reached one by one"):
            envs.get_state()
        assert envs.step(np.zeros(4, int))[1].tolist() == [1.0] * 4
