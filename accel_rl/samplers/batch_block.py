"""Stepping a batch of simulators into the columns of a rollout, with no loop over environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.base import EnvFactory, Environment, EnvSpec, close_quietly
from accel_rl.envs.batched import Batched, BatchReset, One, Results, Simulators, call_factory
from accel_rl.envs.errors import EnvError
from accel_rl.envs.make import probe
from accel_rl.envs.reach import Answer, Request, attempt, reach_batch
from accel_rl.rollout import RolloutSpec
from accel_rl.samplers.base import SamplerConfig, SamplerError
from accel_rl.samplers.block import (
    LEAVE,
    NEXT_EPISODE,
    Autoreset,
    Block,
    BlockArrays,
    EnvStates,
    begin_in_carry,
    count_nothing,
    environment_seed,
    too_many_truncated,
)
from accel_rl.samplers.generators import seed_generators
from accel_rl.spaces import (
    ACTION_MASK,
    NOTHING_ALLOWED,
    describe,
    has_allowed,
    random_values,
    zeros,
)
from accel_rl.system.functions import FAILURES, place_of
from accel_rl.system.states import check_takes, decode_state, encode_state

Mask = NDArray[np.bool_]
_T = TypeVar("_T")

_OWN: dict[BatchReset, tuple[Autoreset, ...]] = {
    "disabled": ("immediate", "wait", "NextStep", "SameStep", "Disabled"),
    "next_step": ("immediate", "NextStep"),
    "same_step": ("immediate", "SameStep"),
}
"""what each kind of batch can be used for"""


def make_envs(
    factory: EnvFactory, columns: slice, spec: RolloutSpec, seed: np.random.SeedSequence
) -> list[Environment] | Simulators:
    """Make the environments of ``columns``, or their batch, with generators of ``seed``.

    A factory with a parameter ``env_index`` is called with the column of each environment.

    Raises:
        SamplerError: an environment does not fit the rollout.
    """
    envs: list[Any] = []
    seed_generators(seed)
    try:
        envs.append(call_factory(factory, columns.start))
        if isinstance(envs[0], Batched):
            batch = envs.pop().make(columns.stop - columns.start, columns.start)
            envs.append(batch)
            _check_fits(batch, columns.start, spec)
            return cast("Simulators", batch)
        for index in range(columns.start, columns.stop):
            if index > columns.start:
                envs.append(call_factory(factory, index))
            _check_fits(envs[-1], index, spec)
        return envs
    except BaseException:
        for env in envs:
            close_quietly(env)
        raise


def make_block(
    envs: list[Environment] | Simulators,
    columns: slice,
    arrays: BlockArrays,
    config: SamplerConfig,
    seed: int,
    restart: int = 0,
    autoreset: Autoreset | None = None,
) -> Block | BatchBlock:
    """Return what steps ``envs``, which `make_envs` has made. Arguments are those of `Block`."""
    if isinstance(envs, list):
        return Block(envs, columns, arrays, config, seed, restart, autoreset)
    return BatchBlock(envs, columns, arrays, config, seed, restart, autoreset)


def probe_spec_for(factory: EnvFactory, config: SamplerConfig) -> EnvSpec:
    """Return the spec of the factory's environments, if they can be reset as ``config`` says.

    Raises:
        EnvError: there is no such environment.
        ValueError: they are a batch that cannot be reset so.
    """
    spec, own, rests = probe(factory, _look)
    check_autoreset(spec.name, own, config.reset_policy, rests=rests)
    return spec


def check_autoreset(
    name: str, own: BatchReset | None, wanted: Autoreset, *, rests: bool = True
) -> None:
    """Raise ValueError if a batch that resets in its ``own`` way cannot be reset as ``wanted``.

    Args:
        name: the environment.
        own: None if it is no batch.
        wanted: a reset policy or a mode of a `VectorEnv`.
        rests: whether steps of the batch leave environments as they are whose episode has ended.
    """
    if own is not None and wanted == "wait" and not rests:
        raise ValueError(
            f"reset_policy is wait, and environment {name} is a vector environment that cannot "
            f"leave environments out of a step, so that those that wait would go on; use immediate"
        )
    if own is None or wanted in _OWN[own]:
        return
    is_policy = wanted in ("immediate", "wait")
    possible = [each for each in _OWN[own] if (each in ("immediate", "wait")) == is_policy]
    raise ValueError(
        f"{'reset_policy' if is_policy else 'autoreset_mode'} is {wanted}, and environment {name} "
        f"is a batch with autoreset={own!r}, which resets its environments itself; use "
        f"{possible[0]}, or a batch with autoreset='disabled'"
    )


def autoreset_of(env: Any) -> BatchReset | None:
    """How an environment that `probe` has made resets itself; None if it is no batch."""
    return env.simulators.autoreset if isinstance(env, One) else None


def _look(env: Any) -> tuple[EnvSpec, BatchReset | None, bool]:
    is_batch = isinstance(env, One)
    return env.spec, autoreset_of(env), not is_batch or getattr(env.simulators, "rests", True)


def _check_fits(env: Any, index: int, expected: RolloutSpec) -> None:
    """Raise SamplerError if environment ``index`` is not like the one that was looked at."""
    spec: EnvSpec = env.spec
    found = (describe(spec.observation), describe(spec.action), spec.info_keys)
    wanted = (describe(expected.observation), describe(expected.action), expected.info_keys)
    if found != wanted:
        names = ("observation", "action", "info_keys")
        wrong = [i for i in range(len(names)) if found[i] != wanted[i]]
        differences = "; ".join(f"{names[i]} is {found[i]} and not {wanted[i]}" for i in wrong)
        raise SamplerError(
            f"environment {index} ({spec.name}) differs from environment 0: {differences}; all "
            f"environments of one sampler must be alike in these"
        )


class BatchBlock:
    """A batch of environments in some columns; the only writer of these columns but for actions.

    Its methods are those of `Block`, and so are the rollouts, with two differences.

    A batch with ``autoreset="next_step"`` resets an environment one step after its episode has
    ended. If the episode ended in step ``t``, ``observation[t + 1]`` is its final observation. Step
    ``t + 1`` ignores its action, and is not valid. ``observation[t + 2]`` is the first observation
    of the next episode. A final observation that has a slot is in the slot, too.

    Random first steps: in a batch with ``autoreset="disabled"``, each environment takes the same
    number of steps as it would take alone. An environment that takes fewer steps than another is
    seeded and reset later. Other batches take all environments' largest number of steps.

    Args:
        simulators: the batch.
        columns: the columns of its environments.
        arrays: where observations and results go.
        config: the sampler's settings.
        seed: the sampler's seed.
        restart: number of the restart that this block belongs to.
        autoreset: how the next episode begins; None: by ``config.reset_policy``.

    Raises:
        SamplerError: from all methods, when the batch raises, or returns something that it must
            not; from `step`, as that of `Block`.
    """

    def __init__(
        self,
        simulators: Simulators,
        columns: slice,
        arrays: BlockArrays,
        config: SamplerConfig,
        seed: int,
        restart: int = 0,
        autoreset: Autoreset | None = None,
    ) -> None:
        self.envs = [simulators]
        self._simulators = simulators
        self._is_masked = simulators.spec.mask is not None
        self._resets_itself = simulators.autoreset != "disabled"
        self._autoreset = autoreset or config.reset_policy
        self._follows_gymnasium = self._autoreset not in ("immediate", "wait")
        check_autoreset(simulators.spec.name, simulators.autoreset, self._autoreset)
        self._columns = columns
        self._config = config
        self._arrays = arrays
        self._rollout = arrays.rollout
        self._n = n = columns.stop - columns.start
        indices = range(columns.start, columns.stop)
        # The seed of each environment, and that of its random first steps.
        seeds = [environment_seed(seed, b, restart).spawn(2) for b in indices]
        self._seeds = [each[0] for each in seeds]
        self._random_seeds = [each[1] for each in seeds]
        self._is_seeded = False
        self._results = Results.allocate(simulators.spec, n)
        self._rewards: Any = self._results.reward.base  # [2, n]
        self._flags: Any = self._results.terminated.base  # [3, n]
        self._everything = np.ones(n, np.bool_)
        # Environments that wait for a reset, or that this step or the next one resets.
        self._is_idle = np.zeros(n, np.bool_)
        self._num_idle = 0
        self._is_blocked = False  # the first reset of all is still to come
        self.refused: EnvStates = {}  # why environments did not take a state at the start
        self.count = count_nothing
        self._has_lost_life = np.zeros(n, np.bool_)  # in the last step, and no more than that

    def start(self, row: int, states: EnvStates | None = None) -> None:
        """Reset all environments into observation row ``row``, then take random first steps."""
        if self._follows_gymnasium:
            return
        out = self._rollout.observation[row, self._columns]
        self._seed()
        begins = self._everything
        if states:
            begins = begins.copy()
            for i in range(self._n):
                index = self._columns.start + i
                state = states[index]
                if isinstance(state, bytes):
                    try:
                        self._set_state(i, state)
                        begins[i] = False
                    except SamplerError as error:
                        self.refused[index] = str(error)
        if begins.any():
            if self._resets_itself and not begins.all():
                raise self._error(
                    "has saved states of only some environments, and cannot reset the others alone"
                )
            self._reset(begins, out)
        if begins.all():
            self._take_random_steps(out)
        for index in self.refused:
            begin_in_carry(self._arrays.carry, index, out[index - self._columns.start])

    def restart(self, row: int) -> None:
        """Begin new episodes in all environments, with first observations in row ``row``."""
        self._seed()
        self._reset(self._everything, self._rollout.observation[row, self._columns])
        self._has_lost_life.fill(False)
        self._set_idle(None)
        self._is_blocked = False

    def wait_for_reset(self) -> None:
        """Let all environments wait, in place of others that were lost within a rollout."""
        self._is_blocked = True

    def step(self, t: int) -> None:
        """Take ``action[t]``: results go to row ``t``, observations to row ``t + 1``."""
        rollout, columns, results = self._rollout, self._columns, self._results
        out = rollout.observation[t + 1, columns]
        if t == 0:
            rollout.final_step[:, columns] = -1
        if self._is_blocked:
            self._blank(t, out)
            return
        was_idle = self._is_idle if self._num_idle else None
        done = self._advance(rollout.action[t, columns], out)
        for array, own in zip(rollout.results[:5], results[:5], strict=True):
            array[t, columns] = own
        if was_idle is None:
            rollout.valid[t, columns] = True
        else:
            np.logical_not(was_idle, out=rollout.valid[t, columns])
        if results.info.size:
            rollout.info[t, columns] = results.info
        if done is not None:
            self._keep_finals(t, done, out)
        self._end_episodes(out, done, was_idle)
        if self._is_masked:
            self._check_masks(out, done)

    def reset(self) -> None:
        """Reset the environments that wait, into the carry; or what a `VectorEnv` has ordered."""
        if self._follows_gymnasium:
            self._reset_ordered()
            return
        waits = self._everything if self._is_blocked else self._is_idle
        if not waits.any():
            return
        carry = self._arrays.carry
        self._seed()
        self._reset(waits, carry.observation[self._columns])
        carry.is_fresh[self._columns] |= waits
        self._set_idle(None)
        self._is_blocked = False

    def get_states(self) -> EnvStates:
        """Return the state of each environment, as `Block.get_states`."""
        simulators: Any = self._simulators
        states: EnvStates = dict.fromkeys(range(self._columns.start, self._columns.stop))
        if not hasattr(simulators, "get_state") or not hasattr(simulators, "set_state"):
            return states

        def read(i: int) -> bytes:
            state = simulators.get_state(i)
            check_takes(simulators.set_state, i, state)
            return encode_state({"state": state, "is_idle": bool(self._is_idle[i])})

        for i, b in enumerate(states):
            try:
                states[b] = self._call("get_state", read, i)
            except SamplerError as error:
                states[b] = str(error)
        return states

    def call(self, request: Request) -> dict[int, Answer]:
        """Call a function in the environments of this block that are meant, see `reach_batch`."""
        begin, stop = self._columns.start, self._columns.stop
        given = {b - begin: each for b, each in request.arguments.items() if begin <= b < stop}
        answer = attempt(reach_batch, self._simulators, request.function, given, self._n)
        values = answer.value or dict.fromkeys(given)
        return {begin + i: answer._replace(value=values[i]) for i in given}

    def close(self) -> None:
        self._simulators.close()

    def _advance(self, action: NDArray[Any], out: NDArray[Any]) -> Mask | None:
        """Step the batch; return where `_autoreset` sees an end, None if nowhere."""
        results = self._results
        if results.info.size:
            results.info.fill(np.nan)
        self._call("step", self._simulators.step, action, out, results)
        if self._num_idle:
            for array in results[:5]:
                array[self._is_idle] = 0
            if self._resets_itself:
                self._keep_reset_info(self._is_idle, results.info)
            results.info[self._is_idle] = np.nan
        terminated, truncated, ended = results[2:5]
        if not np.isfinite(self._rewards).all():
            self._refuse_rewards()
        if not self._flags.any():
            self._has_lost_life.fill(False)
            return None
        done = terminated | truncated
        wrong = (ended > done) | (truncated > ended)
        if wrong.any():
            self._refuse_flags(wrong)
        if self._follows_gymnasium:
            np.greater(done, ended, out=self._has_lost_life)
            if self._autoreset == "NextStep" and self._has_lost_life.any():
                raise self._error(
                    "lost a life; autoreset_mode=NextStep needs a batch that ends episodes with "
                    "games alone: use autoreset_mode=SameStep"
                )
            return done
        return ended if ended.any() else None

    def _keep_finals(self, t: int, done: Mask, out: NDArray[Any]) -> None:
        """Write final observations into slots."""
        results, rollout = self._results, self._rollout
        if self._autoreset == "SameStep":
            which = np.flatnonzero(done)
        elif self._follows_gymnasium:
            return
        else:
            which = np.flatnonzero(results.truncated & ~results.terminated)
        if not which.size:
            return
        columns = which + self._columns.start
        slots = rollout.final_step[:, columns].argmin(axis=0)
        is_full = rollout.final_step[slots, columns] >= 0
        if is_full.any():
            raise too_many_truncated(int(columns[is_full.argmax()]), rollout)
        rollout.final_step[slots, columns] = t
        rollout.final_observation[slots, columns] = out[which]
        if self._simulators.autoreset == "same_step":
            was_reset = results.episode_ended[which]  # others have lost a life
            finals = results.final_observation[which[was_reset]]
            rollout.final_observation[slots[was_reset], columns[was_reset]] = finals

    def _end_episodes(self, out: NDArray[Any], done: Mask | None, was_idle: Mask | None) -> None:
        """Reset the environments that are to be reset now; note those that wait."""
        if self._simulators.autoreset == "next_step":
            self._set_idle(done)
        elif self._simulators.autoreset == "same_step" or self._autoreset == "Disabled":
            if done is not None and self._simulators.autoreset == "same_step":
                self._keep_reset_info(done, getattr(self._simulators, "reset_info", None))
        elif self._autoreset in ("immediate", "SameStep"):
            if done is not None:
                self._keep_reset_info(done, None)
                if (ended := self._results.episode_ended).any():
                    self._reset(ended, out)
        elif self._autoreset == "wait":
            if done is not None:
                self._set_idle(done if was_idle is None else done | was_idle)
            if self._num_idle:
                out[self._is_idle] = 0
        else:  # NextStep
            if was_idle is not None:
                self._reset(was_idle, out)
            self._set_idle(done)

    def _blank(self, t: int, out: NDArray[Any]) -> None:
        """Let row ``t`` hold no step, since all environments wait for their first reset."""
        rollout, columns = self._rollout, self._columns
        for array in rollout.results:
            array[t, columns] = 0
        rollout.info[t, columns] = np.nan
        if self._autoreset == "wait":
            out.fill(0)
            return
        self.restart(t + 1)

    def _reset_ordered(self) -> None:
        orders = self._arrays.reset_order[self._columns]
        self._seed(
            {
                i: np.random.SeedSequence(int(orders[i]))
                for i in np.flatnonzero(orders >= 0).tolist()
            }
        )
        begins = orders != LEAVE
        self._arrays.reset_info[self._columns][begins] = np.nan
        resets = begins & ~(self._has_lost_life & (orders == NEXT_EPISODE))
        if resets.any():
            self._reset(resets, self._rollout.observation[-1, self._columns])
        self._has_lost_life[begins] = False
        self._set_idle(self._is_idle & ~begins)

    def _take_random_steps(self, out: NDArray[Any]) -> None:
        """Take up to ``decorrelation_steps`` random actions; no rollout keeps their results."""
        n, space = self._n, self._simulators.spec.action
        rngs = [np.random.default_rng(seed) for seed in self._random_seeds]
        most = self._config.decorrelation_steps + 1
        num_steps = np.array([rng.integers(most) for rng in rngs])
        longest = int(num_steps.max())
        actions = zeros(space, longest, n)
        for i, rng in enumerate(rngs):
            own = longest if self._resets_itself else int(num_steps[i])
            if not self._is_masked:
                actions[longest - own :, i] = random_values(space, rng, own)
        for k in range(longest + 1):
            if k and not self._resets_itself:
                self._begin_again(num_steps == longest - k, out)
            if k < longest:
                begun = self._everything if self._resets_itself else num_steps >= longest - k
                if self._is_masked:
                    self._draw_allowed(rngs, begun, actions[k], out)
                done = self._advance(actions[k], out)
                if self._resets_itself:
                    self._set_idle(done if self._simulators.autoreset == "next_step" else None)
                elif done is not None:
                    self._reset(done, out)
                self.count(int(begun.sum()))

    def _draw_allowed(
        self, rngs: list[np.random.Generator], mask: Mask, action: NDArray[Any], out: NDArray[Any]
    ) -> None:
        """Draw allowed actions, from ``rngs`` for the environments in ``mask``."""
        space, masks = self._simulators.spec.action, out[ACTION_MASK]
        spare = np.random.default_rng(0)  # for environments that will begin again
        for i in np.flatnonzero(has_allowed(space, masks)).tolist():
            rng = rngs[i] if mask[i] else spare
            action[i] = random_values(space, rng, 1, masks[i : i + 1])[0]

    def _check_masks(self, out: NDArray[Any], done: Mask | None) -> None:
        """Raise SamplerError if an episode goes on and no action is allowed."""
        allowed = has_allowed(self._simulators.spec.action, out[ACTION_MASK]) | self._is_idle
        if done is not None and self._autoreset == "Disabled":
            allowed |= done
        if not allowed.all():
            index = self._columns.start + int(allowed.argmin())
            raise self._error(f"environment {index}: {NOTHING_ALLOWED}")

    def _begin_again(self, mask: Mask, out: NDArray[Any]) -> None:
        """Let the environments in ``mask`` begin as if they had taken no step."""
        if mask.any():
            self._is_seeded = True
            seeds = [seed if each else None for seed, each in zip(self._seeds, mask, strict=True)]
            self._call("seed", self._simulators.seed, seeds)
            self._reset(mask, out)

    def _seed(self, seeds: Mapping[int, np.random.SeedSequence] | None = None) -> None:
        """Seed environments with ``seeds``, and others with their own if they were never seeded."""
        if seeds or not self._is_seeded:
            own: list[Any] = [None] * self._n if self._is_seeded else self._seeds.copy()
            for i, seed in (seeds or {}).items():
                own[i] = seed
            seed_generators(next(filter(None, own)))
            self._call("seed", self._simulators.seed, own)
            self._is_seeded = True

    def _reset(self, mask: Mask, out: NDArray[Any]) -> None:
        self._call("reset", self._simulators.reset, mask, out)
        self._keep_reset_info(mask, getattr(self._simulators, "reset_info", None))

    def _keep_reset_info(self, mask: Mask, info: NDArray[Any] | None) -> None:
        if self._results.info.size:
            kept = self._arrays.reset_info[self._columns]
            kept[mask] = np.nan if info is None else info[mask]

    def _set_idle(self, mask: Mask | None) -> None:
        if mask is None:
            if self._num_idle:
                self._is_idle, self._num_idle = np.zeros(self._n, np.bool_), 0
        else:
            self._is_idle, self._num_idle = mask.copy(), int(np.count_nonzero(mask))

    def _set_state(self, i: int, state: bytes) -> None:
        simulators: Any = self._simulators
        if not hasattr(simulators, "set_state"):
            raise self._error("has a saved state and no set_state to take it")
        decoded = self._call("set_state", decode_state, state)
        if not isinstance(decoded, dict) or decoded.keys() != {"state", "is_idle"}:
            raise self._error("has a saved state that is not one of a batch")
        self._call("set_state", simulators.set_state, i, decoded["state"])
        self._is_idle[i] = decoded["is_idle"]
        self._num_idle = int(np.count_nonzero(self._is_idle))

    def _call(self, name: str, call: Callable[..., _T], *arguments: Any) -> _T:
        try:
            return call(*arguments)
        except FAILURES as error:
            what = f"failed in {name}: {type(error).__name__}: {error}{place_of(error)}"
            if isinstance(error, EnvError):  # which says the rest
                what = str(error).removeprefix(f"environment {self._simulators.spec.name}")
            raise self._error(what.lstrip(": ")) from error

    def _error(self, what: str) -> SamplerError:
        first, last = self._columns.start, self._columns.stop - 1
        return SamplerError(
            f"environments {first} to {last} ({self._simulators.spec.name}), a batch: {what}"
        )

    def _refuse_rewards(self) -> NoReturn:
        for name in ("reward", "raw_reward"):
            values = getattr(self._results, name)
            for i in np.flatnonzero(~np.isfinite(values)).tolist():
                raise self._error(
                    f"it returned the {name} {values[i]} for environment "
                    f"{self._columns.start + i}; it must be finite"
                )
        raise AssertionError

    def _refuse_flags(self, wrong: Mask) -> NoReturn:
        i = int(wrong.argmax())
        names = ("terminated", "truncated", "episode_ended")
        flags = ", ".join(f"{name}={getattr(self._results, name)[i]}" for name in names)
        raise self._error(
            f"it returned {flags} for environment {self._columns.start + i}; episode_ended goes "
            f"with truncated, or with terminated at the end of a game, and truncated always with it"
        )
