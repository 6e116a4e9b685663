"""Stepping a block of environments into the columns of a rollout.

This is the one place where environments are stepped and reset. A `LocalPool` and a worker process
have one block for each of their groups, so both give the same rollouts by construction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.base import Environment
from accel_rl.envs.batched import Simulators
from accel_rl.envs.reach import Answer, Request, attempt
from accel_rl.rollout import Rollout, RolloutSpec
from accel_rl.samplers.base import Autoreset, SamplerConfig, SamplerError
from accel_rl.samplers.generators import seed_generators
from accel_rl.samplers.steppers import State, Stepper
from accel_rl.spaces import ACTION_MASK, NOTHING_ALLOWED, has_allowed, random_values, zeros

EnvStates = dict[int, State]
"""State by environment; or a text of why it was not taken."""

ENVIRONMENT_STREAM = 0
NOISE_STREAM = 1

# Orders for the reset of a `VectorEnv`, for each environment; numbers from 0 are seeds.
LEAVE = -3
NEXT_EPISODE = -2  # goes on after a lost life, begins a new game otherwise
NEW_GAME = -1


def environment_seed(seed: int, env_index: int, restart: int = 0) -> np.random.SeedSequence:
    """The seed of one environment: disjoint over seeds, environments and restarts."""
    return np.random.SeedSequence(seed, spawn_key=(ENVIRONMENT_STREAM, env_index, restart))


def as_list(envs: list[Environment] | Simulators) -> list[Environment] | list[Simulators]:
    """Return ``envs``, or a list of the batch."""
    return envs if isinstance(envs, list) else [envs]


def check_distinct(blocks: Sequence[Sequence[Environment | Simulators]]) -> None:
    """Raise SamplerError if two environments of ``blocks`` are one object, in wrappers too."""
    envs = [env for block in blocks for env in block]
    if len({id(getattr(env, "innermost", env)) for env in envs}) < len(envs):
        raise SamplerError(
            f"the factory of {envs[0].spec.name} has returned the same environment twice; it must "
            f"make a new one in each call"
        )


class Carry(NamedTuple):
    """First observations of the new episodes of environments that waited for their reset.

    The block of a column writes them. The sampler reads and clears them between rollouts.
    """

    observation: NDArray[Any]  # ``[B, ...]``
    # ``[B]`` bool, True where ``observation`` replaces row T of the last rollout
    is_fresh: NDArray[np.bool_]


def count_nothing(num_steps: int) -> None:
    """Ignore the random first steps that a block reports."""


class Play(NamedTuple):
    """The state of one environment of a `VectorEnv`."""

    state: bytes  # of the environment, as bytes
    is_idle: bool  # the next step resets it
    has_lost_life: bool  # its last step ended a life and not the game


class BlockArrays(NamedTuple):
    """Arrays that blocks of environments write results into, and read actions and orders from."""

    spec: RolloutSpec  # shapes and dtypes of the rollout
    rollout: Rollout  # the rollout
    carry: Carry  # first observations after a wait for a reset
    reset_order: NDArray[np.int64]  # ``[B]`` int64, what a `VectorEnv` orders to reset
    # ``[B, len(info_keys)]`` float32, of the last reset; NaN without a value
    reset_info: NDArray[Any]


class Block:
    """The environments of some columns; the only writer of these columns, actions excepted.

    In a sampler, episodes end when games end. In a `VectorEnv`, whose rollout has one step, a step
    that is terminated or truncated ends an episode, and a lost life is terminated, too. The episode
    after a lost life begins without a reset: the observation is the next life's first already.

    A batch with ``autoreset="next_step"`` resets an environment one step after its episode has
    ended. If the episode ended in step ``t``, ``observation[t + 1]`` is its final observation. Step
    ``t + 1`` ignores its action, and is not valid. ``observation[t + 2]`` is the first observation
    of the next episode. A final observation that has a slot is in the slot, too.

    Args:
        autoreset: the mode of a `VectorEnv`; None: there is none, ``config.reset_policy`` holds.

    Attributes:
        envs: the environments, or the batch alone.
        refused: why environments did not take a state at the start.
        count: called after some of the random first steps, with their number.

    Raises:
        SamplerError: from all methods, when an environment raises, or returns something that it
            must not.
    """

    def __init__(
        self,
        stepper: Stepper,
        columns: slice,
        arrays: BlockArrays,
        config: SamplerConfig,
        seed: int,
        restart: int = 0,
        autoreset: Autoreset | None = None,
    ) -> None:
        self.envs = stepper.envs
        self.refused: EnvStates = {}
        self.count = count_nothing
        self._stepper = stepper
        self._columns = columns
        self._first = columns.start
        self._all = range(columns.stop - columns.start)
        self._autoreset = autoreset or config.autoreset
        self._follows_gymnasium = autoreset is not None
        self._num_random = config.decorrelation_steps
        self._arrays = arrays
        self._rollout = arrays.rollout
        self._is_masked = stepper.spec.mask is not None
        # The seed of each environment, and that of its random first steps.
        self._seeds = [environment_seed(seed, self._first + i, restart).spawn(2) for i in self._all]
        self._unseeded = set(self._all)
        self._idle: list[int] = []  # wait for a reset, or the next step resets them
        self._lost_life: set[int] = set()  # in the last step, and no more than that
        self._is_blocked = False  # all wait for their first reset

    def start(self, row: int, states: EnvStates | None = None) -> None:
        """Reset all environments into observation row ``row``, then take random first steps.

        Environments with a state in ``states`` go on from there instead; their observation is in
        the row already. Environments that refuse their state start new episodes, with first
        observations in the carry. In a `VectorEnv` the first order resets all environments.

        In a batch that the caller resets, each environment takes as many random steps as it would
        take alone. An environment that takes fewer steps than another is seeded and reset later.
        Other batches take all environments' largest number of steps.
        """
        if not self._follows_gymnasium:
            for part in self._parts(self._all):
                self._start(part, row, states or {})

    def wait_for_reset(self) -> None:
        """Let all environments wait for a reset. They replace some that were lost in a rollout."""
        self._is_blocked = True

    def step(self, t: int) -> None:
        """Take ``action[t]``: results go to row ``t``, observations to row ``t + 1``."""
        if t == 0:
            self._rollout.final_step[:, self._columns] = -1
        if self._is_blocked:
            self._blank(t)
            return
        idle, stepper = self._idle, self._stepper
        begins = idle and self._autoreset is Autoreset.NEXT_STEP
        if begins and not stepper.is_batch:
            self._begin(idle, self._row(t + 1), self._lost_life)
        done = stepper.step(t, idle)
        if begins and stepper.is_batch and stepper.autoreset is Autoreset.CALLER:
            self._begin(idle, self._row(t + 1))  # here, since the step has overwritten their rows
        if done or idle:
            self._end_episodes(t, done, idle)
        if self._is_masked:
            over = done if self._autoreset is Autoreset.CALLER else ()
            self._check_masks(self._row(t + 1), (*over, *self._idle))

    def reset(self) -> None:
        """Reset the environments that wait, into the carry; or what a `VectorEnv` has ordered."""
        if self._follows_gymnasium:
            self._reset_ordered()
            return
        waiting = self._all if self._is_blocked else sorted(self._idle)
        if waiting:
            carry = self._arrays.carry
            self._begin(waiting, carry.observation[self._columns])
            carry.is_fresh[self._at(waiting)] = True
            self._idle, self._is_blocked = [], False

    def get_states(self) -> EnvStates:
        get = self._stepper.get_state
        return {self._first + i: get(i, i in self._idle) for i in self._all}

    def call(self, request: Request) -> dict[int, Answer]:
        """Call a function in those environments of this block that are meant."""
        own = {b - self._first: given for b, given in request.arguments.items()}
        own = {i: given for i, given in own.items() if i in self._all}
        if self._stepper.is_batch:
            what = "environments of a batch cannot be reached one by one"
            return {self._first + i: Answer(None, "TypeError", what) for i in own}
        function: Any = request.function
        envs: Sequence[Any] = self.envs
        if isinstance(function, str):
            function, envs = getattr(self, function), self._all
        return {self._first + i: attempt(function, envs[i], *given) for i, given in own.items()}

    def get_play(self, i: int) -> Play:
        """Return the state of environment ``i`` of a `VectorEnv`, which is no batch."""
        state = self._stepper.get_state(i, False)
        if not isinstance(state, bytes):
            raise TypeError(
                state
                or f"environment {self.envs[i].spec.name} has no get_state and set_state, as in "
                f"accel_rl.envs.Resumable"
            )
        return Play(state, i in self._idle, i in self._lost_life)

    def set_play(self, i: int, play: Play) -> None:
        """Let environment ``i`` go on from what `get_play` returned."""
        self._seed((i,), {})
        self._stepper.set_state(i, play.state)
        self._idle = [*(j for j in self._idle if j != i), *((i,) if play.is_idle else ())]
        self._lost_life = self._lost_life - {i} | ({i} if play.has_lost_life else set())

    # ---- ends of episodes, which are rare --------------------------------------------------------

    def _end_episodes(self, t: int, done: list[int], idle: list[int]) -> None:
        """Keep final observations, reset what is to be reset now, and note who waits.

        Args:
            idle: the environments for which it was no step.
        """
        mode, own = self._autoreset, self._stepper.autoreset
        is_over = self._rollout.episode_ended[t, self._columns]
        ended = [i for i in done if is_over[i]]
        lost_life = set(done).difference(ended) if self._follows_gymnasium else set()
        self._keep_finals(t, done, ended)
        if mode is Autoreset.WAIT:
            self._idle = idle + ended
            self._rollout.observation[t + 1, self._at(self._idle)] = 0
        elif mode is Autoreset.CALLER:
            self._lost_life = lost_life
        elif mode is Autoreset.NEXT_STEP:
            if lost_life and self._stepper.is_batch:
                raise self._stepper.error(done[0], _LOSES_LIVES)
            self._idle, self._lost_life = done, lost_life
        elif own is Autoreset.NEXT_STEP:
            self._idle = ended
        elif own is Autoreset.CALLER:
            self._begin(sorted(lost_life.union(ended)), self._row(t + 1), lost_life)

    def _keep_finals(self, t: int, done: list[int], ended: list[int]) -> None:
        rollout, first = self._rollout, self._first
        if not self._follows_gymnasium:
            terminated, truncated = rollout.terminated[t], rollout.truncated[t]
            kept = [i for i in ended if truncated[first + i] and not terminated[first + i]]
        elif self._autoreset is Autoreset.SAME_STEP:
            kept = done
        else:
            return
        for i in kept:
            # An environment of a batch that has only lost a life was not reset.
            finals = self._stepper.finals if i in ended else None
            slots = rollout.final_step[:, first + i]
            slot = int(slots.argmin())
            final = self._row(t + 1)[i] if finals is None else finals[i]
            rollout.final_observation[slot, first + i] = final
            slots[slot] = t

    def _blank(self, t: int) -> None:
        """Let row ``t`` hold no step, since all environments wait for their first reset."""
        for array in self._rollout.results:
            array[t, self._columns] = 0
        self._rollout.info[t, self._columns] = np.nan
        self._row(t + 1).fill(0)

    def _reset_ordered(self) -> None:
        orders = self._arrays.reset_order[self._columns].tolist()
        begins = [i for i in self._all if orders[i] != LEAVE]
        goes_on = {i for i in self._lost_life if orders[i] == NEXT_EPISODE}
        seeds = {i: np.random.SeedSequence(orders[i]) for i in begins if orders[i] >= 0}
        self._begin(begins, self._row(-1), goes_on, seeds)
        self._lost_life.difference_update(begins)
        self._idle = [i for i in self._idle if orders[i] == LEAVE]

    # ---- beginnings of episodes ------------------------------------------------------------------

    def _parts(self, which: Sequence[int]) -> Sequence[Sequence[int]]:
        """Cut ``which`` into parts that begin together: all of a batch, or single environments.

        What they draw from the generators of the process then depends on their own seed alone.
        """
        if self._stepper.is_batch:
            return [which] if which else []
        return [[i] for i in which]

    def _start(self, part: Sequence[int], row: int, states: EnvStates) -> None:
        self._seed(part, {})
        begins = [i for i in part if not self._goes_on(i, states.get(self._first + i))]
        if not begins:
            return
        if len(begins) < len(part) and self._stepper.autoreset is not Autoreset.CALLER:
            raise self._stepper.error(
                0, "has saved states of only some environments, and cannot reset the others alone"
            )
        out = self._row(row)
        self._begin(begins, out)
        self.count(0)
        if self._num_random and len(begins) == len(part):
            self._take_random_steps(part, row)
        for b in self.refused.keys() & {self._first + i for i in part}:
            self._arrays.carry.observation[b] = out[b - self._first]
            self._arrays.carry.is_fresh[b] = True

    def _goes_on(self, i: int, state: State) -> bool:
        """Whether environment ``i`` takes ``state``."""
        if not isinstance(state, bytes):
            return False
        try:
            if self._stepper.set_state(i, state):
                self._idle.append(i)
        except SamplerError as error:
            self.refused[self._first + i] = str(error)
            return False
        return True

    def _begin(
        self,
        which: Sequence[int],
        out: NDArray[Any],
        goes_on: Collection[int] = (),
        seeds: Mapping[int, np.random.SeedSequence] | None = None,
    ) -> None:
        """Begin episodes in the environments ``which``, with first observations in ``out``.

        Args:
            goes_on: environments that go on after a lost life, without a reset.
            seeds: seeds by environment.
        """
        if goes_on:
            self._arrays.reset_info[self._at([i for i in which if i in goes_on])] = np.nan
        for part in self._parts([i for i in which if i not in goes_on]):
            self._seed(part, seeds or {})
            self._stepper.reset(part, out)
            if self._is_masked:
                self._check_masks(out, set(self._all).difference(part))

    def _seed(self, part: Sequence[int], given: Mapping[int, np.random.SeedSequence]) -> None:
        """Seed those in ``given``, and others that were never seeded with their own seed."""
        # The first seeds of a batch are for all of its environments.
        new = self._unseeded if self._stepper.is_batch else self._unseeded.intersection(part)
        which = sorted(new.union(i for i in part if i in given))
        if which:
            seeds = {i: given.get(i, self._seeds[i][0]) for i in which}
            seed_generators(seeds[which[0]])
            self._stepper.seed(seeds)
            self._unseeded.difference_update(which)

    def _take_random_steps(self, part: Sequence[int], row: int) -> None:
        """Take up to ``decorrelation_steps`` random actions, to arrive in observation row ``row``.

        The row of results before it is used for them, and is blank afterwards.
        """
        stepper, rollout, t = self._stepper, self._rollout, row - 1
        space, out = stepper.spec.action, self._row(row)
        resets_itself = stepper.autoreset is not Autoreset.CALLER
        rngs = {i: np.random.default_rng(self._seeds[i][1]) for i in part}
        most = self._num_random + 1
        num_steps = {i: int(rng.integers(most)) for i, rng in rngs.items()}
        longest = max(num_steps.values())
        if resets_itself:
            num_steps = dict.fromkeys(part, longest)
        own = slice(self._first + part[0], self._first + part[-1] + 1)
        actions = zeros(space, longest, len(part))
        if not self._is_masked:
            spare = np.random.default_rng(0)  # for environments that will begin again
            for i, n in num_steps.items():
                own_actions = actions[:, i - part[0]]
                own_actions[: longest - n] = random_values(space, spare, longest - n)
                own_actions[longest - n :] = random_values(space, rngs[i], n)
        for k in range(longest):
            left = longest - k
            if k:
                self._begin_again([i for i in part if num_steps[i] == left], out)
            begun = [i for i in part if num_steps[i] >= left]
            if self._is_masked:
                self._draw_allowed(rngs, begun, actions[k], out)
            rollout.action[t, own] = actions[k]
            done = stepper.step(t, self._idle, None if stepper.is_batch else part[0])
            ended = [i for i in done if rollout.episode_ended[t, self._first + i]]
            if stepper.autoreset is Autoreset.NEXT_STEP:
                self._idle = ended
            elif ended and not resets_itself:
                self._begin(ended, out)
            if self._is_masked and not stepper.is_batch:
                self._check_masks(out, set(self._all).difference(part))
            self.count(len(begun))
        if longest:
            self._begin_again([i for i in part if not num_steps[i]], out)
            for array in (rollout.action, *rollout.results, rollout.info):
                array[t, own] = 0

    def _begin_again(self, which: list[int], out: NDArray[Any]) -> None:
        """Let environments of a batch begin as if they had taken no step."""
        if which:
            self._stepper.seed({i: self._seeds[i][0] for i in which})
            self._begin(which, out)

    def _draw_allowed(
        self,
        rngs: Mapping[int, np.random.Generator],
        begun: Collection[int],
        action: NDArray[Any],
        out: NDArray[Any],
    ) -> None:
        """Draw allowed actions, from ``rngs`` for the environments that have ``begun``."""
        space, masks = self._stepper.spec.action, out[ACTION_MASK]
        spare = np.random.default_rng(0)  # for environments that will begin again
        first = min(rngs)
        for i in rngs:
            if has_allowed(space, masks[i : i + 1])[0]:
                rng = rngs[i] if i in begun else spare
                action[i - first] = random_values(space, rng, 1, masks[i : i + 1])[0]

    def _check_masks(self, out: NDArray[Any], but: Collection[int]) -> None:
        """Raise SamplerError if no action is allowed in an environment that is not in ``but``."""
        spec, is_batch = self._stepper.spec, self._stepper.is_batch
        for i in np.flatnonzero(~has_allowed(spec.action, out[ACTION_MASK])).tolist():
            if i not in but:
                who = f"environment {self._first + i}" + ("" if is_batch else f" ({spec.name})")
                raise SamplerError(f"{who}: {NOTHING_ALLOWED}")

    def _row(self, row: int) -> NDArray[Any]:
        out: NDArray[Any] = self._rollout.observation[row, self._columns]
        return out

    def _at(self, which: Sequence[int]) -> NDArray[np.int64]:
        columns: NDArray[np.int64] = np.asarray(which, np.int64) + self._first
        return columns


_LOSES_LIVES = (
    "lost a life; autoreset_mode=NextStep needs a batch that ends episodes with games alone: use "
    "autoreset_mode=SameStep"
)
