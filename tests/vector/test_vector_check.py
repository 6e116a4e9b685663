"""The kit that checks vector environments: it passes right ones and finds each fault."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tiers import slow_processes

from accel_rl.vector import VectorEnv, check, check_vectoriser

SAME_STEP = AutoresetMode.SAME_STEP
MODES = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)


def sync(make: Callable[[], Any], n: int, mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([make] * n, autoreset_mode=mode)


@MODES
def test_check_vectoriser_gymnasiums_loop_keeps_all_rules(mode: AutoresetMode) -> None:
    report = check_vectoriser(sync, mode)
    assert not report.broken, str(report)
    untested = [each.rule for each in report.findings if each.verdict == "not tested"]
    assert untested == ([] if mode is SAME_STEP else ["final observations", "final infos"])


OURS = pytest.mark.parametrize(
    ("mode", "num_workers"),
    [
        (AutoresetMode.NEXT_STEP, 0),
        (AutoresetMode.DISABLED, 0),
        slow_processes(SAME_STEP, 2),
        slow_processes(AutoresetMode.NEXT_STEP, 2),
    ],
)


@OURS
def test_check_vectoriser_our_workers_keep_all_rules(mode: AutoresetMode, num_workers: int) -> None:
    def ours(make: Callable[[], Any], n: int, mode: AutoresetMode) -> VectorEnv:
        options = {"num_workers": num_workers, "autoreset_mode": mode}
        return VectorEnv(make, n, info_keys=("count",), **options)

    report = check_vectoriser(ours, mode)
    assert not report.broken, str(report)


class Faulty(gymnasium.vector.VectorWrapper):
    """A right vector environment, one of whose results ``spoil`` changes."""

    def __init__(self, env: Any, spoil: Callable[[int, list[Any]], None]) -> None:
        super().__init__(env)
        self._spoil, self._t = spoil, 0

    def step(self, actions: Any) -> Any:
        result = list(self.env.step(actions))
        self._spoil(self._t, result)
        self._t += 1
        return tuple(result)


def one_row_up(t: int, result: list[Any]) -> None:
    result[0] = np.roll(result[0], 1, axis=0)


def reward_late(t: int, result: list[Any]) -> None:
    if t == 9:
        result[1] = result[1] + 1


def truncated_as_terminated(t: int, result: list[Any]) -> None:
    result[2], result[3] = result[2] | result[3], np.zeros_like(result[3])


def first_as_final(t: int, result: list[Any]) -> None:
    if "final_obs" in result[4]:
        result[4]["final_obs"][:] = [*result[0]]


def no_final(t: int, result: list[Any]) -> None:
    result[4].pop("final_obs", None)


def no_infos(t: int, result: list[Any]) -> None:
    result[4] = {key: result[4][key] for key in result[4] if "final" in key}


@pytest.mark.parametrize(
    ("spoil", "rules"),
    [
        (one_row_up, ["observations"]),
        (reward_late, ["rewards, of the actions given"]),
        (truncated_as_terminated, ["terminated", "truncated"]),
        (first_as_final, ["final observations"]),
        (no_final, ["final observations"]),
        (no_infos, ["infos, with their masks"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_check_vectoriser_finds_the_fault_and_no_other(spoil, rules) -> None:
    report = check_vectoriser(lambda *given: Faulty(sync(*given), spoil), SAME_STEP)
    assert [each.rule for each in report.broken] == rules, str(report)


def test_check_vectoriser_finds_reused_arrays_and_swallowed_errors() -> None:
    class Careless(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            try:
                return super().step(actions)
            except RuntimeError:
                return self.reset()[0], np.zeros(4), np.zeros(4, bool), np.zeros(4, bool), {}

    report = check_vectoriser(
        lambda make, n, mode: Careless([make] * n, autoreset_mode=mode, copy=False)
    )
    broken = {each.rule for each in report.broken}
    assert {
        "arrays that were returned stay as they are",
        "an environment's error is reported",
    } <= broken


def cartpoles() -> SyncVectorEnv:
    return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)


def wrong_dtypes(t: int, result: list[Any]) -> None:
    result[1] = result[1].astype(np.int64)


def reward_of_reset(t: int, result: list[Any]) -> None:
    result[1] = np.ones(3)


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (wrong_dtypes, "shapes and dtypes"),
        (reward_of_reset, "autoreset mode is told and kept"),
    ],
)
def test_check_finds_the_fault_and_no_other(spoil, rule) -> None:
    report = check(lambda: Faulty(cartpoles(), spoil), num_steps=60)
    assert [each.rule for each in report.broken] == [rule], str(report)


def test_check_finds_seeds_that_are_ignored() -> None:
    class Unseeded(SyncVectorEnv):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return super().reset(seed=None, options=options)

    report = check(lambda: Unseeded([lambda: gymnasium.make("CartPole-v1")] * 3), num_steps=20)
    assert [each.rule for each in report.broken] == ["same seed, same episodes"]


def test_check_names_what_hangs_and_goes_on() -> None:
    go_on = threading.Event()

    def hangs_in_step(t: int, result: list[Any]) -> None:
        go_on.wait(60)

    report = check(lambda: Faulty(cartpoles(), hangs_in_step), num_steps=2, timeout=0.5)
    verdicts = {each.rule: each.verdict for each in report.findings}
    names = ("spaces are batches of the single ones", "shapes and dtypes")
    assert [verdicts[rule] for rule in names] == ["holds", "broken"]
    assert "0.5 s" in next(each.detail for each in report.broken)
    go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("check: "):
            thread.join(60)
