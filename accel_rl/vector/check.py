"""Does a vector environment keep the rules of `gymnasium.vector.VectorEnv`?

`check` plays any vector environment and looks at what it returns. `check_vectoriser` makes one of
environments that count (`CountingEnv`), for which a plain loop predicts every array exactly, so
that it also finds a reward in the wrong row or an observation of the wrong episode.

Each rule is tested by itself and in a thread of its own, so that one that is broken, or an
environment that hangs, does not keep the others from being tested.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import psutil
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

Verdict = Literal["holds", "broken", "not tested"]
MakeVector = Callable[[], Any]
"""makes the vector environment to check"""
Vectorise = Callable[[Callable[[], gymnasium.Env[Any, Any]], int, AutoresetMode], Any]
"""makes a vector environment of ``n`` environments: ``vectorise(make_env, n, autoreset_mode)``"""

_NUM_ENVS = 4
_RAISES_AT = 5
_CLOSE_SECONDS = 10.0


class Finding(NamedTuple):
    """The result of checking one rule.

    Attributes:
        rule: the rule, in a few words.
        verdict: ``holds``, ``broken`` or ``not tested``.
        detail: how the rule is broken, or why it was not tested; otherwise empty.
    """

    rule: str
    verdict: Verdict
    detail: str = ""


class Report(NamedTuple):
    """The findings on one vector environment. ``str(report)`` is a table.

    Attributes:
        findings: one for each rule.
    """

    findings: tuple[Finding, ...]

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The findings of the rules that are broken."""
        return tuple(each for each in self.findings if each.verdict == "broken")

    def __str__(self) -> str:
        width = max(len(each.rule) for each in self.findings)
        return "\n".join(
            f"{each.rule:{width}}  {each.verdict:10}  {each.detail}".rstrip()
            for each in self.findings
        )


class CountingEnv(gymnasium.Env[Any, Any]):
    """Observations ``[4]`` int64 that say where they come from.

    They are (seed of the first reset, episode, step, action that led here); the reward is
    ``step + action / 4``, and ``info["count"]`` the steps so far in all episodes. Episode ``e`` of
    the environment with seed ``s`` has ``2 + (s + e) % 4`` steps and ends terminated if ``s + e``
    is even, truncated otherwise.

    Args:
        raises_with_seed: the environment of this seed raises in its fifth step; None: none does.
    """

    def __init__(self, raises_with_seed: int | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 2**40, (4,), np.int64)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._raises_with_seed = raises_with_seed
        self._seed, self._episode, self._count = -1, -1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._seed, self._episode, self._count = seed, -1, 0
        self._episode += 1
        self._step = 0
        return self._observe(-1), {"count": self._count}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        self._count += 1
        if self._seed == self._raises_with_seed and self._count == _RAISES_AT:
            raise RuntimeError("this counting environment was made to fail")
        number = self._seed + self._episode
        ended = self._step == 2 + number % 4
        reward = self._step + int(action) / 4
        flags = ended and number % 2 == 0, ended and number % 2 == 1
        return self._observe(int(action)), reward, *flags, {"count": self._count}

    def _observe(self, action: int) -> Any:
        return np.array([self._seed, self._episode, self._step, action])


def check(
    make: MakeVector,
    *,
    num_steps: int = 300,
    seed: int = 7,
    timeout: float = 60.0,
    leave_out: Sequence[str] = (),
) -> Report:
    """Play a vector environment with random actions and report which rules it keeps.

    Args:
        make: a function without arguments that makes the `gymnasium.vector.VectorEnv`.
        num_steps: steps to play; enough of them that some episodes end.
        seed: of resets and actions.
        timeout: seconds after which a rule whose test has not ended counts as broken.
        leave_out: rules not to test, because their test would end the process, for example.

    Returns:
        A finding for each rule.
    """
    play = _once(lambda: _play(make, num_steps, seed))
    rules: dict[str, Callable[[], None]] = {
        "spaces are batches of the single ones": lambda: _check_spaces(make),
        "reset returns observations and infos": lambda: _check_reset(make, seed),
        "shapes and dtypes": lambda: _check_types(play()),
        "autoreset mode is told and kept": lambda: _check_mode(play()),
        "final observations": lambda: _check_final(play()),
        "truncated and terminated apart": lambda: _check_flags(play()),
        "arrays that were returned stay as they are": lambda: _check_aliasing(play()),
        "same seed, same episodes": lambda: _check_seed(make, play(), num_steps, seed),
        "another seed, other episodes": lambda: _check_other_seed(make, play(), num_steps, seed),
        "wrong number of actions is refused": lambda: _check_refusal(make, seed),
        "close twice, no process left behind": lambda: _check_close(make, seed),
    }
    if unknown := set(leave_out) - rules.keys():
        raise ValueError(f"leave_out names {sorted(unknown)}; the rules are {list(rules)}")
    return _run(rules | dict.fromkeys(leave_out, _leave_out), timeout)


def check_vectoriser(
    vectorise: Vectorise,
    mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    *,
    num_steps: int = 60,
    seed: int = 100,
    timeout: float = 60.0,
) -> Report:
    """Compare a vectoriser, array by array, with a plain loop over environments that count.

    Args:
        vectorise: makes a vector environment of ``n`` environments, each by ``make_env()``.
        mode: the autoreset mode to make it with.
        num_steps: steps to play.
        seed: the environments get ``seed + i``.
        timeout: seconds after which a rule whose test has not ended counts as broken.

    Returns:
        A finding for each rule.
    """

    def make(raises_with_seed: int | None = None) -> Any:
        return vectorise(lambda: CountingEnv(raises_with_seed), _NUM_ENVS, mode)

    actions = np.random.default_rng(seed).integers(3, size=(num_steps, _NUM_ENVS))
    expected = _expect(mode, actions, seed)
    play = _once(lambda: _play(make, num_steps, seed, actions))

    def equal(name: str) -> Callable[[], None]:
        return lambda: _check_equal(name, play().steps, expected)

    rules = {
        "environment i gets seed + i": lambda: _check_first(play(), seed),
        "observations": equal("observation"),
        "rewards, of the actions given": equal("reward"),
        "terminated": equal("terminated"),
        "truncated": equal("truncated"),
        "final observations": lambda: _check_final_exactly(mode, play(), expected),
        "final infos": lambda: _check_final_infos(mode, play(), expected),
        "infos, with their masks": lambda: _check_infos(mode, play(), expected),
        "arrays that were returned stay as they are": lambda: _check_aliasing(play()),
        "an environment's error is reported": lambda: _check_error(make, seed),
    }
    return _run(rules, timeout)


# ---- playing -------------------------------------------------------------------------------------


class _Step(NamedTuple):
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    infos: dict[str, Any]


class _Played(NamedTuple):
    """A game: copies made at once of all that was returned, and the objects themselves."""

    env: Any
    first: Any
    steps: list[_Step]
    first_returned: Any
    returned: list[_Step]


class _Broken(Exception):
    """A rule is broken; the message says how."""


class _NotTested(Exception):
    """A rule could not be tested; the message says why."""


def _play(make: Callable[[], Any], num_steps: int, seed: int, actions: Any = None) -> _Played:
    with _closing(make()) as env:
        space = env.action_space
        space.seed(seed)
        first, _ = env.reset(seed=seed)
        played = _Played(env, copy.deepcopy(first), [], first, [])
        for t in range(num_steps):
            result = env.step(space.sample() if actions is None else actions[t])
            played.returned.append(_Step(*result))
            played.steps.append(_Step(*copy.deepcopy(result)))
            _reset_ended(env, played.steps[-1])
        return played


def _reset_ended(env: Any, step: _Step) -> None:
    """Reset the environments whose episode has ended, where that is the caller's part."""
    if _mode_of(env) is AutoresetMode.DISABLED and _done(step).any():
        env.reset(options={"reset_mask": _done(step)})


def _expect(mode: AutoresetMode, actions: Any, seed: int) -> list[_Step]:
    """What a plain loop over the environments gives; final ones are in ``infos``."""
    envs = [CountingEnv() for _ in range(_NUM_ENVS)]
    for i, env in enumerate(envs):
        env.reset(seed=seed + i)
    was_done = [False] * _NUM_ENVS
    steps = []
    for row in actions:
        results = []
        for i, env in enumerate(envs):
            final: Any = None
            if was_done[i] and mode is AutoresetMode.NEXT_STEP:
                observation, info = env.reset()
                reward, terminated, truncated = 0.0, False, False
            else:
                observation, reward, terminated, truncated, info = env.step(row[i])
            was_done[i] = terminated or truncated
            if was_done[i] and mode is AutoresetMode.SAME_STEP:
                final = observation, info
                observation, info = env.reset()
            elif was_done[i] and mode is AutoresetMode.DISABLED:
                env.reset()
            results.append((observation, reward, terminated, truncated, info, final))
        observations, rewards, terminated_, truncated_, infos, finals = zip(*results, strict=True)
        told = {"count": [info["count"] for info in infos], "final": finals}
        arrays = [np.array(each) for each in (observations, rewards, terminated_, truncated_)]
        steps.append(_Step(arrays[0], arrays[1], arrays[2], arrays[3], told))
    return steps


@contextmanager
def _closing(env: Any) -> Iterator[Any]:
    try:
        yield env
    finally:
        with suppress(Exception):
            env.close()


def _once(call: Callable[[], _Played]) -> Callable[[], _Played]:
    """``call``, made at the first use; what it raised is raised again at each later one."""
    made: list[_Played | Exception] = []
    has_begun = False

    def get() -> _Played:
        nonlocal has_begun
        if not made:
            if has_begun:
                raise _Broken("the steps that it looks at have not ended")
            has_begun = True
            try:
                made.append(call())
            except Exception as error:
                made.append(error)
        if isinstance(made[0], Exception):
            raise made[0]
        return made[0]

    return get


def _run(rules: dict[str, Callable[[], None]], timeout: float) -> Report:
    return Report(tuple(_find(rule, test, timeout) for rule, test in rules.items()))


def _find(rule: str, test: Callable[[], None], timeout: float) -> Finding:
    found = Finding(rule, "broken", f"no answer within {timeout:g} s")

    def run() -> None:
        nonlocal found
        try:
            test()
            found = Finding(rule, "holds")
        except _Broken as error:
            found = Finding(rule, "broken", str(error))
        except _NotTested as error:
            found = Finding(rule, "not tested", str(error))
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            found = Finding(rule, "broken", f"it raised {text[:200]}")

    thread = threading.Thread(target=run, name=f"check: {rule}", daemon=True)
    thread.start()
    thread.join(timeout)
    return found


def _leave_out() -> None:
    raise _NotTested("left out")


# ---- the rules -----------------------------------------------------------------------------------


def _require(holds: object, detail: str) -> None:
    if not holds:
        raise _Broken(detail)


def _mode_of(env: Any) -> AutoresetMode | None:
    mode = env.metadata.get("autoreset_mode")
    return mode if isinstance(mode, AutoresetMode) else None


def _done(step: _Step) -> Any:
    return np.asarray(step.terminated) | np.asarray(step.truncated)


def _need_ends(played: _Played) -> None:
    if not any(_done(step).any() for step in played.steps):
        raise _NotTested(f"no episode ended within {len(played.steps)} steps")


def _check_spaces(make: MakeVector) -> None:
    with _closing(make()) as env:
        for kind in ("observation", "action"):
            single = getattr(env, f"single_{kind}_space")
            batch, expected = getattr(env, f"{kind}_space"), batch_space(single, env.num_envs)
            _require(batch == expected, f"{kind}_space is {batch}, not {expected}")


def _check_reset(make: MakeVector, seed: int) -> None:
    with _closing(make()) as env:
        result = env.reset(seed=seed)
        is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        _require(is_pair, f"reset returned {type(result).__name__}, not (observations, infos)")
        _require(
            env.observation_space.contains(_owned(result[0])), "they are not in observation_space"
        )


def _owned(value: Any) -> Any:
    """Arrays for a space to look at, whatever they are views of."""
    return copy.deepcopy(value)


def _check_types(played: _Played) -> None:
    n = played.env.num_envs
    for t, step in enumerate(played.steps):
        where = f"in step {t}"
        inside = played.env.observation_space.contains(step.observation)
        _require(inside, f"observations are not in observation_space {where}")
        reward = np.asarray(step.reward)
        _require(
            reward.shape == (n,) and reward.dtype.kind == "f",
            f"rewards are {reward.dtype} {list(reward.shape)}, not floats [{n}] {where}",
        )
        for name in ("terminated", "truncated"):
            flag = np.asarray(getattr(step, name))
            _require(
                flag.shape == (n,) and flag.dtype == np.bool_,
                f"{name} is {flag.dtype} {list(flag.shape)}, not bool [{n}] {where}",
            )
        _require(isinstance(step.infos, dict), f"infos are no dictionary {where}")


def _check_mode(played: _Played) -> None:
    mode = _mode_of(played.env)
    told = played.env.metadata.get("autoreset_mode")
    _require(mode, f'metadata["autoreset_mode"] is {told!r}, which is no AutoresetMode')
    _need_ends(played)
    for t, (step, following) in enumerate(zip(played.steps, played.steps[1:], strict=False)):
        done = _done(step)
        if mode is AutoresetMode.NEXT_STEP and done.any():
            reward = np.asarray(following.reward)[done]
            _require(
                not reward.any() and not _done(following)[done].any(),
                f"step {t + 1}, which resets, has rewards {reward.tolist()} or a flag",
            )
        elif mode is AutoresetMode.SAME_STEP and done.any():
            _require("final_obs" in step.infos, f'infos have no "final_obs" in step {t}')


def _check_final(played: _Played) -> None:
    if _mode_of(played.env) is not AutoresetMode.SAME_STEP:
        raise _NotTested("only same-step autoreset has final observations beside the others")
    _need_ends(played)
    space = played.env.single_observation_space
    for t, step in enumerate(played.steps):
        done = _done(step)
        if done.any():
            mask = np.asarray(step.infos.get("_final_obs", False))
            _require(np.array_equal(mask, done), f"_final_obs is not terminated | truncated in {t}")
            for i in np.flatnonzero(done):
                _require(
                    space.contains(step.infos["final_obs"][i]),
                    f"the final observation of environment {i} is not in its space in step {t}",
                )


def _check_flags(played: _Played) -> None:
    _need_ends(played)
    for t, step in enumerate(played.steps):
        both = np.flatnonzero(np.asarray(step.terminated) & np.asarray(step.truncated))
        _require(not both.size, f"environments {both.tolist()} are both in step {t}")


def _check_aliasing(played: _Played) -> None:
    _require(
        _is_equal(played.first_returned, played.first), "steps changed the observations of reset"
    )
    for t, (returned, copied) in enumerate(zip(played.returned, played.steps, strict=True)):
        for name in ("observation", "reward", "terminated", "truncated"):
            _require(
                _is_equal(getattr(returned, name), getattr(copied, name)),
                f"later steps changed the {name} that step {t} returned",
            )


def _is_equal(left: Any, right: Any) -> bool:
    if isinstance(right, dict):
        return all(_is_equal(left[key], right[key]) for key in right)
    if isinstance(right, tuple):
        return all(map(_is_equal, left, right))
    left, right = np.asarray(left), np.asarray(right)
    return np.array_equal(left, right, equal_nan=right.dtype.kind == "f")


def _check_seed(make: MakeVector, played: _Played, num_steps: int, seed: int) -> None:
    again = _play(make, num_steps, seed)
    _require(_is_equal(again.first, played.first), "the first observations differ")
    for t, (one, other) in enumerate(zip(again.steps, played.steps, strict=True)):
        for name in ("observation", "reward", "terminated", "truncated"):
            _require(
                _is_equal(getattr(one, name), getattr(other, name)), f"{name} differs in step {t}"
            )


def _check_other_seed(make: MakeVector, played: _Played, num_steps: int, seed: int) -> None:
    other = _play(make, num_steps, seed + 1_000)
    is_equal = _is_equal(other.first, played.first) and all(
        _is_equal(one.observation, two.observation)
        for one, two in zip(other.steps, played.steps, strict=True)
    )
    _require(not is_equal, "all observations are the same")


def _check_refusal(make: MakeVector, seed: int) -> None:
    with _closing(make()) as env:
        env.reset(seed=seed)
        too_few = batch_space(env.single_action_space, env.num_envs - 1).sample()
        try:
            env.step(too_few)
        except Exception:
            return
        raise _Broken(f"{env.num_envs - 1} actions for {env.num_envs} environments were taken")


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _check_nothing_left(before: set[psutil.Process]) -> None:
    """No process but those ``before`` and Python's own tracker outlives ``close``."""
    _, alive = psutil.wait_procs(_children() - before, timeout=_CLOSE_SECONDS)
    with suppress(psutil.NoSuchProcess):
        alive = [each for each in alive if "resource_tracker" not in " ".join(each.cmdline())]
    _require(not alive, f"{len(alive)} processes outlive close()")


def _check_close(make: MakeVector, seed: int) -> None:
    before = _children()
    env = make()
    env.reset(seed=seed)
    env.close()
    env.close()
    _check_nothing_left(before)


def _check_first(played: _Played, seed: int) -> None:
    seeds = np.asarray(played.first)[:, 0].tolist()
    expected = [seed + i for i in range(_NUM_ENVS)]
    _require(seeds == expected, f"the environments got the seeds {seeds}, not {expected}")


def _check_equal(name: str, steps: Sequence[_Step], expected: Sequence[_Step]) -> None:
    for t, (step, true) in enumerate(zip(steps, expected, strict=True)):
        value, correct = np.asarray(getattr(step, name)), getattr(true, name)
        if not np.array_equal(value, correct):
            wrong = [i for i in range(_NUM_ENVS) if not np.array_equal(value[i], correct[i])]
            i = wrong[0]
            raise _Broken(
                f"environment {i} gave {value[i].tolist()} in step {t}, not {correct[i].tolist()}"
            )


def _finals(expected: Sequence[_Step]) -> Iterator[tuple[int, int, Any, int]]:
    """Step, environment, final observation and final count of each episode that ended."""
    for t, step in enumerate(expected):
        for i, final in enumerate(step.infos["final"]):
            if final is not None:
                yield t, i, final[0], final[1]["count"]


def _need_same_step(mode: AutoresetMode) -> None:
    if mode is not AutoresetMode.SAME_STEP:
        raise _NotTested("the final ones are the step's own in this autoreset mode")


def _check_final_exactly(mode: AutoresetMode, played: _Played, expected: Sequence[_Step]) -> None:
    _need_same_step(mode)
    for t, i, observation, _ in _finals(expected):
        infos = played.steps[t].infos
        _require("final_obs" in infos, f'infos have no "final_obs" in step {t}')
        found = infos["final_obs"][i]
        _require(
            np.array_equal(found, observation),
            f"environment {i} gave {np.asarray(found).tolist()} in step {t}, not "
            f"{observation.tolist()}",
        )


def _check_final_infos(mode: AutoresetMode, played: _Played, expected: Sequence[_Step]) -> None:
    _need_same_step(mode)
    for t, i, _, count in _finals(expected):
        final = played.steps[t].infos.get("final_info")
        _require(isinstance(final, dict), f'infos have no dictionary "final_info" in step {t}')
        found = final.get("count", [None] * _NUM_ENVS)[i]  # type: ignore[union-attr]
        _require(found == count, f"environment {i} gave count {found} in step {t}, not {count}")


def _check_infos(mode: AutoresetMode, played: _Played, expected: Sequence[_Step]) -> None:
    """The environments' own infos, where they stepped; those of resets are left alone."""
    was_done = np.zeros(_NUM_ENVS, np.bool_)
    for t, (step, true) in enumerate(zip(played.steps, expected, strict=True)):
        done = _done(true)
        stepped = ~done if mode is AutoresetMode.SAME_STEP else ~was_done
        was_done = done if mode is AutoresetMode.NEXT_STEP else np.zeros(_NUM_ENVS, np.bool_)
        if not stepped.any():
            continue
        _require({"count", "_count"} <= step.infos.keys(), f'"count" or "_count" is not in {t}')
        for i in np.flatnonzero(stepped):
            found, correct = step.infos["count"][i], true.infos["count"][i]
            _require(
                step.infos["_count"][i] and found == correct,
                f"environment {i} gave count {found} in step {t}, not {correct}",
            )


def _check_error(make: Callable[[int], Any], seed: int) -> None:
    before = _children()
    env = make(seed + 1)
    try:
        env.reset(seed=seed)
        for _ in range(2 * _RAISES_AT):
            _reset_ended(env, _Step(*env.step(np.zeros(_NUM_ENVS, np.int64))))
    except Exception as error:
        texts = [str(each) for each in (error, error.__cause__, error.__context__) if each]
        _require(
            any("made to fail" in text for text in texts),
            f"{type(error).__name__} does not say what the environment raised",
        )
    else:
        raise _Broken("steps went on without the environment that raised")
    finally:
        with suppress(Exception):
            env.close()
    _check_nothing_left(before)
