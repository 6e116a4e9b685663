"""Names of environments: what each makes, that factories travel, and what unknown ones are told."""

import dataclasses
import pickle
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from refusals import rows, words

from accel_rl.envs import (
    AtariConfig,
    Catch,
    EnvError,
    EnvSpec,
    StepResult,
    make_env_factory,
    probe_spec,
)
from accel_rl.envs.make import probe_observations
from accel_rl.samplers import ParallelSampler, SamplerConfig, SerialSampler
from accel_rl.spaces import Leaf, discrete
from accel_rl.system import topology
from accel_rl.vector import VectorEnv


def make_cart_pole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def make_broken() -> Catch:
    raise OSError("no licence")


def make_number() -> int:
    return 3


@pytest.mark.parametrize("shape", [(3, 10), ()])
def test_stack_that_is_not_the_first_axis_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"frame_stack is 4, and observation is .* first ax"):
        dataclasses.replace(Catch.spec, observation=Leaf(shape, np.float32), frame_stack=4)


@pytest.mark.parametrize(
    ("env", "name", "shape", "num_actions"),
    [
        ("breakout", "breakout", (4, 104, 80), 4),
        ("catch", "catch", (10, 5), 3),
        ("counting_env:CountingEnv", "counting", (3,), 4),
        ("CartPole-v1", "CartPole-v1", (4,), 2),
        ("FrozenLake-v1", "FrozenLake-v1", (), 4),
        ("ALE/Pong-v5", "ALE/Pong-v5", (210, 160, 3), 6),
        ("test_envs_make:make_cart_pole", "test_envs_make:make_cart_pole", (4,), 2),
        ("accel_rl.envs.catch:Catch", "catch", (10, 5), 3),
    ],
)
def test_factory_of_each_kind_of_name_survives_pickling_and_steps(
    env: str, name: str, shape: tuple[int, ...], num_actions: int
) -> None:
    factory = pickle.loads(pickle.dumps(make_env_factory(env, AtariConfig())))
    spec = probe_spec(factory)
    assert (spec.name, spec.observation_shape, spec.num_actions) == (name, shape, num_actions)
    made = factory()
    made.seed(np.random.SeedSequence(0))
    out = np.zeros(shape, spec.observation_dtype)
    made.reset(out)
    for action in range(num_actions):
        made.step(action, out)
    made.close()


UNKNOWN = """
breakot | Atari did you mean breakout
ctach | did you mean catch
cartpole-v1 | did you mean CartPole-v1
CartPole-v7 | did you mean CartPole-v1
ALE/Pnog-v5 | did you mean ALE/Pong-v5
accel_rl:CartPole-v7 | did you mean CartPole-v1
minatar/braekout | did you mean breakout
qqqqqq | Atari minatar/GAME, catch, a Gymnasium id
no_such_module:make | no_such_module cannot be imported
no_such:Mine-v0 | no_such cannot be imported
accel_rl.envs:make | accel_rl.envs has no function make
mistaken_env:make | mistaken_env cannot be imported: SyntaxError
"""


@pytest.mark.parametrize(("env", "said"), rows(UNKNOWN))
def test_unknown_environment_is_refused(env: str, said: str, tmp_path, monkeypatch) -> None:
    (tmp_path / "mistaken_env.py").write_text("def make(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=words(f"env={env} {said}")):
        make_env_factory(env)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("test_envs_make:make_broken", "make_broken constructor: OSError: no licence"),
        (make_broken, "make_broken constructor: OSError: no licence"),
        ("test_envs_make:make_number", "make_number int must return gymnasium"),
        # A bare function of Gymnasium's is told what makes a factory of it.
        (make_cart_pole, "make_cart_pole TimeLimit make_env_factory(func"),
    ],
)
def test_what_makes_no_environment_is_named(factory: Any, said: str) -> None:
    factory = make_env_factory(factory) if ":" in str(factory)[:20] else factory
    with pytest.raises(EnvError, match=words(said)) as info:
        probe_spec(factory)
    assert "OSError" not in said or isinstance(info.value.__cause__, OSError)


def test_function_is_a_name_for_a_factory_and_an_environment_is_not() -> None:
    spec = probe_spec(make_env_factory(make_cart_pole))
    assert spec.name == "make_cart_pole" and spec.observation_shape == (4,)
    with pytest.raises(ValueError, match=words("env is Catch it must be a name or a function")):
        make_env_factory(Catch())  # type: ignore[arg-type]


def test_spaces_of_any_environment_are_in_its_spec() -> None:
    spec = probe_spec(make_env_factory("Pendulum-v1"))
    assert spec.action == Leaf((1,), np.float32, -2.0, 2.0)
    with pytest.raises(ValueError, match=r"actions of environment Pendulum-v1 are .* Discrete"):
        _ = spec.num_actions


# ---- observations to look at ---------------------------------------------------------------------


class Steps:
    """Observations ``[episode, step]``; ``num_still``: steps before the first that shows."""

    spec = EnvSpec(name="steps", observation=Leaf((2,), np.int64), action=discrete(2))

    def __init__(self, num_still: int = 0, fails_in: str = "") -> None:
        self._num_still, self._fails_in = num_still, fails_in
        self._episode, self.is_closed = 0, False

    def seed(self, seed: np.random.SeedSequence) -> None:
        pass

    def reset(self, out: np.ndarray) -> None:
        if self._fails_in == "reset":
            raise OSError("no level")
        self._episode, self._step = self._episode + 1, 0
        out[:] = self._episode, 0

    def step(self, action: int, out: np.ndarray) -> StepResult:
        self._step += 1
        out[1] = max(self._step - self._num_still, 0)
        if self._fails_in == "step":
            raise OSError("not allowed")
        return StepResult(0.0, 0.0, False, False, False)

    def close(self) -> None:
        self.is_closed = True
        if self._fails_in == "close":
            raise OSError("no handle")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[1, 0], [1, 1]]),
        ({"num_still": 3}, [[1, 0], [1, 1]]),
        ({"num_still": 1000}, [[1, 0], [1, 0]]),
        ({"fails_in": "step"}, [[1, 0], [1, 0]]),  # the action is not allowed
    ],
)
def test_observations_to_look_at_are_two_that_differ_if_few_steps_show_any(options, expected):
    assert probe_observations(partial(Steps, **options)).tolist() == expected


# ---- the two small environments ------------------------------------------------------------------


def catch_return(choose: Any, num_episodes: int) -> float:
    env = Catch()
    env.seed(np.random.SeedSequence(0))
    out = np.zeros((10, 5), np.float32)
    total = 0.0
    for _ in range(num_episodes):
        env.reset(out)
        for t in range(9):
            result = env.step(choose(out), out)
            assert result.episode_ended == result.terminated == (t == 8)
            assert out.sum() == (1 if t == 8 and result.reward == 1 else 2)
            total += result.reward
    return total / num_episodes


def test_catch_is_won_by_following_the_ball() -> None:
    def follow(board: Any) -> int:
        ball = int(board[:9].argmax()) % 5
        paddle = int(board[9].argmax())
        return int(np.sign(ball - paddle)) + 1

    assert catch_return(follow, 50) == 1.0


@pytest.mark.processes
def test_id_registered_in_this_process_reaches_workers() -> None:
    class Cart(CartPoleEnv):
        pass

    gymnasium.register("LocalCart-v0", entry_point=Cart, max_episode_steps=7)
    try:
        config = SamplerConfig(num_envs=2, horizon=20, num_workers=1, num_groups=1)
        with ParallelSampler(make_env_factory("LocalCart-v0"), config=config) as sampler:
            sampler.collect(lambda step: [0, 1])
            episodes = sampler.take_episodes()
    finally:
        del gymnasium.registry["LocalCart-v0"]
    assert episodes and all(episode.episode_length <= 7 for episode in episodes)


@pytest.mark.processes
def test_module_of_an_id_is_imported_in_workers_too(tmp_path: Path, monkeypatch) -> None:
    """It registers another id, which the environment makes, and which its entry point does not."""
    (tmp_path / "outer_env.py").write_text(
        "import gymnasium\ndef make(**options):\n    return gymnasium.make('InnerCart-v0')\n"
    )
    (tmp_path / "two_ids.py").write_text(
        "import gymnasium\n"
        "inner = 'gymnasium.envs.classic_control:CartPoleEnv'\n"
        "gymnasium.register('InnerCart-v0', entry_point=inner)\n"
        "gymnasium.register('OuterCart-v0', entry_point='outer_env:make')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = SamplerConfig(num_envs=2, horizon=3, num_workers=1, num_groups=1)
    with ParallelSampler(make_env_factory("two_ids:OuterCart-v0"), config=config) as sampler:
        assert sampler.collect(lambda step: [0, 1]).reward.sum() == 6
    with pytest.raises(ValueError, match="did you mean OuterCart-v0"):
        make_env_factory("two_ids:OutrCart-v0")
    for name in ("InnerCart-v0", "OuterCart-v0"):
        del gymnasium.registry[name]


# ---- environments that are made to be looked at --------------------------------------------------


def noted(made: list[Steps], **options: Any) -> Any:
    """A factory that keeps what it has made."""

    def make_steps() -> Steps:
        made.append(Steps(**options))
        return made[-1]

    return make_steps


def test_environment_that_fails_when_it_is_looked_at_is_named_and_closed() -> None:
    made: list[Steps] = []
    said = "environment steps failed in its first reset: OSError: no level"
    with pytest.raises(EnvError, match=said):
        probe_observations(noted(made, fails_in="reset"))
    assert [each.is_closed for each in made] == [True]


def test_close_that_goes_wrong_is_a_warning_that_names_the_environment(caplog) -> None:
    topology.warn_once.cache_clear()
    made: list[Steps] = []
    factory = noted(made, fails_in="close")
    assert probe_spec(factory) is Steps.spec and len(probe_observations(factory)) == 2
    assert [each.is_closed for each in made] == [True, True]
    (record,) = caplog.records  # said once
    assert "make_steps" in record.message and "close" in record.message


@pytest.mark.parametrize("kind", [ParallelSampler, SerialSampler, VectorEnv])
def test_environment_is_looked_at_in_this_thread(kind) -> None:
    """Those that need the main thread, for signal handlers, can be made."""
    seen: list[bool] = []

    def make() -> Steps:
        seen.append(threading.current_thread() is threading.main_thread())
        return Steps()

    kind(make, num_envs=4).close()
    assert seen[:1] == [True]


class NotedCartPole(CartPoleEnv):
    closed: list[bool] = []  # noqa: RUF012

    def close(self) -> None:
        self.closed.append(True)
        super().close()


@pytest.mark.parametrize("keys", [None, ["a", "a"]])
def test_environment_that_is_refused_is_closed(keys: Any, monkeypatch) -> None:
    """It is no `Environment`, or its keys are wrong."""
    monkeypatch.setattr(NotedCartPole, "closed", [])
    with pytest.raises(EnvError):
        probe_spec(make_env_factory(NotedCartPole, info_keys=keys) if keys else NotedCartPole)
    assert NotedCartPole.closed == [True]
