"""The check of one environment, and its command: right ones pass, and each fault is found."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from space_envs import SpaceEnv

from accel_rl.__main__ import main
from accel_rl.vector import check_env


class Right(gymnasium.Env[Any, Any]):
    """Three steps an episode, noise as observations; ``spoil`` changes what a step returns."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-2, 2, (1,), np.float32)

    def __init__(self, spoil: Callable[..., Any] | None = None) -> None:
        self.spoil = spoil

    def look(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        given = self.look(), float(action[0]), self.t == 3, False, {}
        return self.spoil(action, *given) if self.spoil else given


def unseeded(action: Any, observation: Any, *rest: Any) -> Any:
    return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32), *rest


def fails_at_bounds(action: Any, *given: Any) -> Any:
    if abs(action[0]) == 2:
        raise RuntimeError("too much")
    return given


def raises(action: Any, *given: Any) -> Any:
    raise KeyError("lost")


IN_SPACE, DTYPES = "observations are in their space", "what it returns has the right dtypes"


@pytest.mark.parametrize(
    ("spoil", "broken"),
    [
        (None, {}),
        (lambda a, o, *rest: (o + 3, *rest), {IN_SPACE: "above 1.0"}),
        (lambda a, o, *rest: (o * np.nan, *rest), {IN_SPACE: "observation is not finite"}),
        (lambda a, o, *rest: (o.astype(np.float64), *rest), {DTYPES: "float64"}),
        (lambda a, o, reward, *_: (o, reward, 0, False, {}), {DTYPES: "a flag of type int"}),
        (fails_at_bounds, {"actions at their bounds are taken": "RuntimeError: too much"}),
        (unseeded, {"same seed, same episodes": "the episodes differ"}),
        (raises, {"it can be reset and stepped": "failed in step: KeyError: 'lost'"}),
    ],
)
def test_fault_is_found_and_no_other(spoil: Any, broken: dict[str, str]) -> None:
    report = check_env(partial(Right, spoil), num_steps=20)
    found = {each.rule: each.detail for each in report.broken}
    if IN_SPACE in broken:  # what is not in its space breaks both
        found.pop(DTYPES, None)
    if spoil is raises:  # which those find, too, that step environments of their own
        found = {rule: found[rule] for rule in broken}
    assert found.keys() == broken.keys(), str(report)
    assert all(broken[rule] in detail for rule, detail in found.items())


@pytest.mark.parametrize(
    "env", ["catch", "gymnasium-vec:CartPole-v1", "space_envs:masked", partial(SpaceEnv, "dict")]
)
def test_environments_of_every_kind_are_right(env: Any) -> None:
    report = check_env(env, num_steps=30)
    assert not report.broken, str(report)
    assert {"environment", "observations", "actions", "steps a second"} == report.facts.keys()


def test_command_prints_the_report_and_its_status_says_whether_something_is_wrong(capsys) -> None:
    assert main(["check", "env=CartPole-v1", "num_steps=40"]) == 0
    printed = capsys.readouterr().out
    assert "actions                               integers 0 .. 1\n" in printed
    assert "same seed, same episodes              holds\n" in printed
    assert main(["check", "env=test_check_env:make_unseeded", "num_steps=10"]) == 1
    printed = capsys.readouterr().out
    assert "same seed, same episodes              broken      the episodes differ" in printed
    assert main(["check", "num_steps=0"]) == 1
    assert "num_steps is 0; it must be" in capsys.readouterr().err


def make_unseeded() -> Right:
    return Right(unseeded)
