"""Does a vector environment keep the rules of `gymnasium.vector.VectorEnv`?

`check` plays any vector environment and looks at what it returns. `check_vectoriser` makes one of
environments that count, and compares every array with those of Gymnasium's own loop, so that it
also finds a reward in the wrong row or an observation of the wrong episode.

Each rule is tested in a thread of its own, so that the others are tested even if a rule is broken
or the environment hangs.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import psutil
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

MakeVector = Callable[[], Any]
"""makes the vector environment to check"""
Vectorise = Callable[[Callable[[], gymnasium.Env[Any, Any]], int, AutoresetMode], Any]
"""makes a vector environment of ``n`` environments: ``vectorise(make_env, n, autoreset_mode)``"""

Verdict = Literal["holds", "broken", "not tested"]

_CLOSE_SECONDS = 10.0
_NUM_ENVS = 4
_RAISES_AT = 5
_ARRAYS = ("observation", "reward", "terminated", "truncated")


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
    """The findings on one environment. ``str(report)`` is a table.

    Attributes:
        findings: one for each rule.
        facts: what the environment is like, in words, by what each is about.
    """

    findings: tuple[Finding, ...]
    facts: Mapping[str, str] = {}

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The findings of the rules that are broken."""
        return tuple(each for each in self.findings if each.verdict == "broken")

    def __str__(self) -> str:
        width = max(len(each) for each in (*self.facts, *(found.rule for found in self.findings)))
        rows = [f"{name:{width}}  {fact}" for name, fact in self.facts.items()]
        rows += [f"{rule:{width}}  {verdict:10}  {why}" for rule, verdict, why in self.findings]
        return "\n".join(map(str.rstrip, rows))


class Broken(Exception):
    """A rule is broken; the message says how."""


class NotTested(Exception):
    """A rule could not be tested; the message says why."""


def check(
    make: MakeVector,
    *,
    num_steps: int = 300,
    seed: int = 7,
    timeout: float = 60.0,
) -> Report:
    """Play a vector environment with random actions and report which rules it keeps.

    Args:
        make: a function without arguments that makes the `gymnasium.vector.VectorEnv`.
        num_steps: steps to play; enough of them that some episodes end.
        seed: of resets and actions.
        timeout: seconds after which a rule whose test has not ended counts as broken.

    Returns:
        A finding for each rule.
    """
    play = once(lambda: _play(make, num_steps, seed))
    rules: dict[str, Callable[[], None]] = {
        "spaces are batches of the single ones": lambda: _check_spaces(make),
        "shapes and dtypes": lambda: _check_types(play()),
        "autoreset mode is told and kept": lambda: _check_mode(play()),
        "final observations": lambda: _check_final(play()),
        "arrays that were returned stay as they are": lambda: _check_aliasing(play()),
        "same seed, same episodes": lambda: _check_seed(_play(make, num_steps, seed), play()),
        "another seed, other episodes": lambda: _check_other_seed(
            _play(make, num_steps, seed + 1_000), play()
        ),
        "wrong number of actions is refused": lambda: _check_refusal(make, seed),
        "close twice, no process left behind": lambda: _check_close(make, seed),
    }
    return find(rules, timeout)


def check_vectoriser(
    vectorise: Vectorise,
    mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    *,
    num_steps: int = 60,
    seed: int = 100,
    timeout: float = 60.0,
) -> Report:
    """Compare a vectoriser, array by array, with a `SyncVectorEnv` of environments that count.

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
        return vectorise(lambda: _CountingEnv(raises_with_seed), _NUM_ENVS, mode)

    actions = np.random.default_rng(seed).integers(3, size=(num_steps, _NUM_ENVS))
    envs = [_CountingEnv] * _NUM_ENVS
    reference = SyncVectorEnv(envs, autoreset_mode=mode)
    expected = _play(lambda: reference, num_steps, seed, actions).steps
    play = once(lambda: _play(make, num_steps, seed, actions))

    def equal(name: str) -> Callable[[], None]:
        return lambda: _check_equal(name, play().steps, expected)

    rules = {
        "observations": equal("observation"),
        "rewards, of the actions given": equal("reward"),
        "terminated": equal("terminated"),
        "truncated": equal("truncated"),
        "final observations": lambda: _check_finals(mode, play(), expected, "final_obs"),
        "final infos": lambda: _check_finals(mode, play(), expected, "final_info"),
        "infos, with their masks": lambda: _check_infos(mode, play(), expected),
        "arrays that were returned stay as they are": lambda: _check_aliasing(play()),
        "an environment's error is reported": lambda: _check_error(make, seed),
    }
    return find(rules, timeout)


# ---- testing rules -------------------------------------------------------------------------------


def require(holds: object, detail: str) -> None:
    """Raise `Broken` with ``detail`` unless it ``holds``."""
    if not holds:
        raise Broken(detail)


def once(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that makes ``call`` at its first use, and repeats the outcome later."""
    outcome: list[Any] = []

    def get() -> Any:
        if not outcome:
            outcome.append(Broken("the steps that it looks at have not ended"))
            try:
                outcome[0] = call()
            except Exception as error:
                outcome[0] = error
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    return get


def find(rules: Mapping[str, Callable[[], object]], timeout: float) -> Report:
    """Test each rule in a thread of its own, for ``timeout`` seconds at most."""
    return Report(tuple(_find(rule, test, timeout) for rule, test in rules.items()))


def _find(rule: str, test: Callable[[], object], timeout: float) -> Finding:
    found = Finding(rule, "broken", f"no answer within {timeout:g} s")

    def run() -> None:
        nonlocal found
        try:
            test()
            found = Finding(rule, "holds")
        except Broken as error:
            found = Finding(rule, "broken", str(error))
        except NotTested as error:
            found = Finding(rule, "not tested", str(error))
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            found = Finding(rule, "broken", f"it raised {text[:200]}")

    thread = threading.Thread(target=run, name=f"check: {rule}", daemon=True)
    thread.start()
    thread.join(timeout)
    return found


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """Raise `Broken` if a process that was started within goes on, except Python's own tracker."""
    this = psutil.Process()
    before = set(this.children(recursive=True))
    yield
    started = set(this.children(recursive=True)) - before
    _, alive = psutil.wait_procs(started, timeout=_CLOSE_SECONDS)
    with suppress(psutil.NoSuchProcess):
        alive = [each for each in alive if "resource_tracker" not in " ".join(each.cmdline())]
    require(not alive, f"{len(alive)} processes outlive close()")


# ---- playing -------------------------------------------------------------------------------------


class _CountingEnv(gymnasium.Env[Any, Any]):
    """Observations ``[4]`` int64: (seed of the first reset, episode, step, action that led here).

    The reward is ``step + action / 4``, and ``info["count"]`` the steps so far in all episodes.
    Episode ``e`` of the environment with seed ``s`` has ``2 + (s + e) % 4`` steps and ends
    terminated if ``s + e`` is even, truncated otherwise. The environment with the seed
    ``raises_with_seed`` raises in its fifth step.
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
        return np.array([self._seed, self._episode, 0, -1]), {"count": self._count}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        self._count += 1
        if self._seed == self._raises_with_seed and self._count == _RAISES_AT:
            raise RuntimeError("this counting environment was made to fail")
        number = self._seed + self._episode
        ended = self._step == 2 + number % 4
        observation = np.array([self._seed, self._episode, self._step, int(action)])
        flags = ended and number % 2 == 0, ended and number % 2 == 1
        return observation, self._step + int(action) / 4, *flags, {"count": self._count}


class _Step(NamedTuple):
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    infos: dict[str, Any]

    @property
    def done(self) -> Any:
        return np.asarray(self.terminated) | np.asarray(self.truncated)


class _Played(NamedTuple):
    """A game: copies made at once of all that was returned, and the objects themselves."""

    env: Any
    first: Any
    steps: list[_Step]
    first_returned: Any
    returned: list[_Step]


def _play(make: Callable[[], Any], num_steps: int, seed: int, actions: Any = None) -> _Played:
    with _closing(make()) as env:
        space = env.action_space
        space.seed(seed)
        first, infos = env.reset(seed=seed)
        require(isinstance(infos, dict), "reset does not return (observations, infos)")
        played = _Played(env, copy.deepcopy(first), [], first, [])
        for t in range(num_steps):
            result = env.step(space.sample() if actions is None else actions[t])
            played.returned.append(_Step(*result))
            played.steps.append(_Step(*copy.deepcopy(result)))
            _reset_ended(env, played.steps[-1])
        return played


def _reset_ended(env: Any, step: _Step) -> None:
    """Reset the environments whose episode has ended, where that is the caller's part."""
    if _mode_of(env) is AutoresetMode.DISABLED and step.done.any():
        env.reset(options={"reset_mask": step.done})


@contextmanager
def _closing(env: Any) -> Iterator[Any]:
    try:
        yield env
    finally:
        with suppress(Exception):
            env.close()


# ---- the rules -----------------------------------------------------------------------------------


def _mode_of(env: Any) -> AutoresetMode | None:
    mode = env.metadata.get("autoreset_mode")
    return mode if isinstance(mode, AutoresetMode) else None


def _need_ends(played: _Played) -> None:
    if not any(step.done.any() for step in played.steps):
        raise NotTested(f"no episode ended within {len(played.steps)} steps")


def _need_same_step(mode: AutoresetMode | None) -> None:
    if mode is not AutoresetMode.SAME_STEP:
        raise NotTested("only same-step autoreset has final observations beside the others")


def _check_spaces(make: MakeVector) -> None:
    with _closing(make()) as env:
        for kind in ("observation", "action"):
            single = getattr(env, f"single_{kind}_space")
            batch, expected = getattr(env, f"{kind}_space"), batch_space(single, env.num_envs)
            require(batch == expected, f"{kind}_space is {batch}, not {expected}")


def _check_types(played: _Played) -> None:
    n, space = played.env.num_envs, played.env.observation_space
    require(space.contains(played.first), "observations of reset are not in observation_space")
    for t, step in enumerate(played.steps):
        inside = space.contains(step.observation)
        require(inside, f"observations are not in observation_space in step {t}")
        for name, kind in (("reward", "f"), ("terminated", "b"), ("truncated", "b")):
            array = np.asarray(getattr(step, name))
            found = f"{array.dtype} {list(array.shape)}"
            wanted = f"{'floats' if kind == 'f' else 'bool'} [{n}]"
            is_right = array.shape == (n,) and array.dtype.kind == kind
            require(is_right, f"{name} is {found}, not {wanted} in step {t}")
        require(isinstance(step.infos, dict), f"infos are no dictionary in step {t}")


def _check_mode(played: _Played) -> None:
    mode = _mode_of(played.env)
    told = played.env.metadata.get("autoreset_mode")
    require(mode, f'metadata["autoreset_mode"] is {told!r}, which is no AutoresetMode')
    _need_ends(played)
    for t, (step, following) in enumerate(zip(played.steps, played.steps[1:], strict=False)):
        done = step.done
        if mode is AutoresetMode.NEXT_STEP and done.any():
            reward = np.asarray(following.reward)[done]
            require(
                not reward.any() and not following.done[done].any(),
                f"step {t + 1}, which resets, has rewards {reward.tolist()} or a flag",
            )


def _check_final(played: _Played) -> None:
    _need_same_step(_mode_of(played.env))
    _need_ends(played)
    space = played.env.single_observation_space
    for t, step in enumerate(played.steps):
        if step.done.any():
            mask = np.asarray(step.infos.get("_final_obs", False))
            equal = np.array_equal(mask, step.done)
            require(equal, f"_final_obs is not terminated | truncated in {t}")
            for i in np.flatnonzero(step.done):
                require(
                    space.contains(step.infos["final_obs"][i]),
                    f"the final observation of environment {i} is not in its space in step {t}",
                )


def _check_aliasing(played: _Played) -> None:
    is_kept = _is_equal(played.first_returned, played.first)
    require(is_kept, "steps changed the observations of reset")
    for t, name in _differences(played.returned, played.steps):
        raise Broken(f"later steps changed the {name} that step {t} returned")


def _differences(left: Sequence[_Step], right: Sequence[_Step]) -> Iterator[tuple[int, str]]:
    for t, (one, other) in enumerate(zip(left, right, strict=True)):
        for name in _ARRAYS:
            if not _is_equal(getattr(one, name), getattr(other, name)):
                yield t, name


def _is_equal(left: Any, right: Any) -> bool:
    if isinstance(right, dict):
        return all(_is_equal(left[key], right[key]) for key in right)
    if isinstance(right, tuple):
        return all(map(_is_equal, left, right))
    left, right = np.asarray(left), np.asarray(right)
    return np.array_equal(left, right, equal_nan=right.dtype.kind == "f")


def _check_seed(again: _Played, played: _Played) -> None:
    require(_is_equal(again.first, played.first), "the first observations differ")
    for t, name in _differences(again.steps, played.steps):
        raise Broken(f"{name} differs in step {t}")


def _check_other_seed(other: _Played, played: _Played) -> None:
    differ = any(name == "observation" for _, name in _differences(other.steps, played.steps))
    is_equal = _is_equal(other.first, played.first) and not differ
    require(not is_equal, "all observations are the same")


def _check_refusal(make: MakeVector, seed: int) -> None:
    with _closing(make()) as env:
        env.reset(seed=seed)
        too_few = batch_space(env.single_action_space, env.num_envs - 1).sample()
        try:
            env.step(too_few)
        except Exception:
            return
        raise Broken(f"{env.num_envs - 1} actions for {env.num_envs} environments were taken")


def _check_close(make: MakeVector, seed: int) -> None:
    with leaving_nothing():
        env = make()
        env.reset(seed=seed)
        env.close()
        env.close()


def _check_value(t: int, i: int, found: Any, correct: Any) -> None:
    if not np.array_equal(found, correct):
        told, right = (np.asarray(each).tolist() for each in (found, correct))
        raise Broken(f"environment {i} gave {told} in step {t}, not {right}")


def _check_equal(name: str, steps: Sequence[_Step], expected: Sequence[_Step]) -> None:
    for t, (step, true) in enumerate(zip(steps, expected, strict=True)):
        for i in range(_NUM_ENVS):
            _check_value(t, i, getattr(step, name)[i], getattr(true, name)[i])


def _check_finals(
    mode: AutoresetMode, played: _Played, expected: Sequence[_Step], key: str
) -> None:
    """The final observations, or the counts in the final infos."""
    _need_same_step(mode)
    for t, true in enumerate(expected):
        for i in np.flatnonzero(true.done).tolist():
            infos = played.steps[t].infos
            require(key in infos, f'infos have no "{key}" in step {t}')
            found, correct = infos[key], true.infos[key]
            if key == "final_info":
                found, correct = found.get("count", [None] * _NUM_ENVS), correct["count"]
            _check_value(t, i, found[i], correct[i])


def _check_infos(mode: AutoresetMode, played: _Played, expected: Sequence[_Step]) -> None:
    """The environments' own infos, where they stepped; those of resets are left alone."""
    was_done = np.zeros(_NUM_ENVS, np.bool_)
    for t, (step, true) in enumerate(zip(played.steps, expected, strict=True)):
        stepped = ~true.done if mode is AutoresetMode.SAME_STEP else ~was_done
        was_done = true.done & (mode is AutoresetMode.NEXT_STEP)
        for i in np.flatnonzero(stepped).tolist():
            require({"count", "_count"} <= step.infos.keys(), f'"count" or "_count" is not in {t}')
            require(step.infos["_count"][i], f"environment {i} gave no count in step {t}")
            _check_value(t, i, step.infos["count"][i], true.infos["count"][i])


def _check_error(make: Callable[[int], Any], seed: int) -> None:
    with leaving_nothing(), _closing(make(seed + 1)) as env:
        try:
            env.reset(seed=seed)
            for _ in range(2 * _RAISES_AT):
                _reset_ended(env, _Step(*env.step(np.zeros(_NUM_ENVS, np.int64))))
        except Exception as error:
            texts = [str(each) for each in (error, error.__cause__, error.__context__) if each]
            is_told = any("made to fail" in text for text in texts)
            require(is_told, f"{type(error).__name__} does not say what the environment raised")
        else:
            raise Broken("steps went on without the environment that raised")
