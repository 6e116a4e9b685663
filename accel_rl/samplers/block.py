"""Stepping a block of environments into the columns of a rollout.

This is the one place where environments are stepped and reset. A `LocalPool` and a worker process
have one block for each of their groups, so both give the same rollouts by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.base import Environment
from accel_rl.envs.batched import Simulators
from accel_rl.envs.reach import Answer, Request, attempt
from accel_rl.rollout import Rollout, RolloutSpec
from accel_rl.samplers.base import SamplerConfig, SamplerError
from accel_rl.samplers.generators import seed_generators
from accel_rl.samplers.simulators import Each
from accel_rl.spaces import ACTION_MASK, NOTHING_ALLOWED, Leaf, has_allowed, random_values

EnvStates = dict[int, bytes | str | None]
"""State by environment, as `encode_state` returns it; a text of why it cannot be saved or taken;
None: nothing for that is there."""

Autoreset = Literal["immediate", "wait", "NextStep", "SameStep", "Disabled"]
"""How the next episode begins: the reset policy of a `SamplerConfig`, or a mode of Gymnasium's."""

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
    """Raises SamplerError where two environments of ``blocks`` are one object, in wrappers too."""
    envs = [env for block in blocks for env in block]
    if len({id(getattr(env, "innermost", env)) for env in envs}) < len(envs):
        raise SamplerError(
            f"the factory of {envs[0].spec.name} has returned the same environment twice; it must "
            f"make a new one in each call"
        )


def too_many_truncated(index: int, rollout: Rollout) -> SamplerError:
    """Return the error for environment ``index``, whose slots are full."""
    return SamplerError(
        f"environment {index} was truncated more than final_observation_slots="
        f"{len(rollout.final_step)} times within one rollout of {len(rollout.action)} steps; leave "
        f"final_observation_slots out, or raise it"
    )


class Carry(NamedTuple):
    """Where environments that waited for their reset leave the new episode's first observation.

    Written by whoever steps the column, read and cleared by the sampler between rollouts.

    Attributes:
        observation: ``[B, ...]``.
        is_fresh: ``[B]`` bool, True where ``observation`` replaces row T of the last rollout.
    """

    observation: NDArray[Any]
    is_fresh: NDArray[np.bool_]


def count_nothing(num_steps: int) -> None:
    """What a block calls after some of its random first steps, if nobody wants to know."""


def begin_in_carry(carry: Carry, index: int, observation: NDArray[Any]) -> None:
    """Let environment ``index`` have begun an episode since the last rollout."""
    carry.observation[index] = observation
    carry.is_fresh[index] = True


class Play(NamedTuple):
    """The state of one environment of a `VectorEnv`.

    Attributes:
        state: of the environment, as bytes.
        is_idle: the next step resets it.
        has_lost_life: its last step ended a life and not the game.
    """

    state: bytes
    is_idle: bool
    has_lost_life: bool


class BlockArrays(NamedTuple):
    """What blocks of environments write into, and read their actions and orders from.

    Attributes:
        spec: what the rollout is like.
        rollout: the rollout.
        carry: first observations after a wait for a reset.
        reset_order: ``[B]`` int64, what a `VectorEnv` orders to reset.
        reset_info: ``[B, len(info_keys)]`` float32, of the last reset; NaN where it told nothing.
    """

    spec: RolloutSpec
    rollout: Rollout
    carry: Carry
    reset_order: NDArray[np.int64]
    reset_info: NDArray[Any]


class Block:
    """The environments of some columns; the only writer of these columns, actions excepted.

    With ``immediate`` and ``wait``, episodes end when games end, as a `SamplerConfig` describes.
    Gymnasium's modes are for a `VectorEnv`, whose rollout has one step. There, a step that is
    terminated or truncated ends an episode, and a lost life is terminated, too. The episode after a
    lost life begins without a reset: the observation is the next life's first already.

    Args:
        envs: the environments; `make_envs` makes them.
        columns: the columns of the environments.
        arrays: where observations and results go.
        config: the sampler's settings.
        seed: the sampler's seed.
        restart: number of the restart that this block belongs to.
        autoreset: how the next episode begins; None: by ``config.reset_policy``.

    Raises:
        SamplerError: from `step`, when an environment has more truncated episodes in one rollout
            than ``final_observation_slots``, or gives a reward that is not finite.
    """

    def __init__(
        self,
        envs: Sequence[Environment],
        columns: slice,
        arrays: BlockArrays,
        config: SamplerConfig,
        seed: int,
        restart: int = 0,
        autoreset: Autoreset | None = None,
    ) -> None:
        self._columns = columns
        self._autoreset = autoreset or config.reset_policy
        self._follows_gymnasium = self._autoreset not in ("immediate", "wait")
        self._config = config
        self._arrays = arrays
        self._rollout = rollout = arrays.rollout
        self._indices = range(columns.start, columns.stop)
        self.envs = envs
        self._simulators = Each(self.envs, rollout, self._indices, arrays.reset_info)
        self._action = self.envs[0].spec.action
        self._is_masked = self.envs[0].spec.mask is not None
        # The seed of each environment, and that of its random first steps.
        self._seeds = [environment_seed(seed, b, restart).spawn(2) for b in self._indices]
        self._is_seeded = [False] * len(self.envs)
        # Views made once: indexing a list is several times cheaper than indexing an array. The
        # ellipsis makes views of scalars, too.
        self._out = [[row[index, ...] for index in self._indices] for row in rollout.observation]
        self.refused: EnvStates = {}  # why environments did not take a state at the start
        self.count = count_nothing
        self._is_idle = [False] * len(self.envs)  # waits for a reset, or resets in the next step
        self._has_lost_life = [False] * len(self.envs)  # in its last step, and no more than that

    def start(self, row: int, states: EnvStates | None = None) -> None:
        """Reset all environments into observation row ``row``, then take random first steps.

        Environments with a state in ``states`` go on from there instead; their observation is in
        the row already. Those that do not take it begin anew like the others, with what they begin
        with in the carry. In Gymnasium's modes the first order resets all environments.
        """
        if self._follows_gymnasium:
            return
        for i, (_, seed) in enumerate(self._seeds):
            index, out = self._indices[i], self._out[row][i]
            state = states[index] if states else None
            if isinstance(state, bytes):
                self._seed(i)
                try:
                    self._simulators.set_state(i, state)
                    continue
                except SamplerError as error:
                    self.refused[index] = str(error)
            self._begin_episode(i, out)
            self.count(0)
            self._take_random_steps(i, out, np.random.default_rng(seed))
            if index in self.refused:
                begin_in_carry(self._arrays.carry, index, out)

    def restart(self, row: int) -> None:
        """Begin new episodes in all environments, with first observations in row ``row``."""
        for i, out in enumerate(self._out[row]):
            self._has_lost_life[i] = self._is_idle[i] = False
            self._begin_episode(i, out)

    def wait_for_reset(self) -> None:
        """Let all environments wait, in the place of others that were lost within a rollout."""
        self._is_idle = [True] * len(self.envs)

    def step(self, t: int) -> None:
        """Take ``action[t]``: results go to row ``t``, observations to row ``t + 1``."""
        out = self._out[t + 1]
        if t == 0:
            self._rollout.final_step[:, self._columns] = -1
        if True in self._is_idle:
            self._prepare_idle(out)
        ended = self._simulators.step(t, out, self._is_idle)
        if self._follows_gymnasium:
            self._is_idle = [False] * len(self.envs)
            rollout, columns = self._rollout, self._columns
            is_done = rollout.terminated[t, columns] | rollout.truncated[t, columns]
            for i in np.flatnonzero(is_done).tolist():
                self._has_lost_life[i] = not ended[i]
                self._end_episode(t, i, keep_final=self._autoreset == "SameStep")
        elif True in ended:
            terminated, truncated = self._rollout.terminated[t], self._rollout.truncated[t]
            for i, b in enumerate(self._indices):
                if ended[i]:
                    self._end_episode(t, i, keep_final=truncated[b] and not terminated[b])
        if self._is_masked:
            self._check_masks(t)

    def reset(self) -> None:
        """Reset the environments that wait, into the carry; or what a `VectorEnv` has ordered."""
        if self._follows_gymnasium:
            self._reset_ordered()
            return
        carry = self._arrays.carry
        for i, is_waiting in enumerate(self._is_idle):
            if is_waiting:
                index = self._indices[i]
                self._begin_episode(i, carry.observation[index, ...])
                carry.is_fresh[index] = True
                self._is_idle[i] = False

    def get_states(self) -> EnvStates:
        """The state of each environment."""
        return {index: self._simulators.get_state(i) for i, index in enumerate(self._indices)}

    def call(self, request: Request) -> dict[int, Answer]:
        """Call a function in those environments of this block that are meant."""
        answers: dict[int, Answer] = {}
        for index, arguments in request.arguments.items():
            if index in self._indices:
                i = index - self._indices.start
                if isinstance(request.function, str):
                    answers[index] = attempt(getattr(self, request.function), i, *arguments)
                else:
                    answers[index] = attempt(request.function, self.envs[i], *arguments)
        return answers

    def get_play(self, i: int) -> Play:
        """Return the state of environment ``i`` of a `VectorEnv`.

        Raises:
            TypeError: it cannot tell its state.
        """
        state = self._simulators.get_state(i)
        if not isinstance(state, bytes):
            raise TypeError(
                state
                or f"environment {self.envs[i].spec.name} has no get_state and set_state, as in "
                f"accel_rl.envs.Resumable"
            )
        return Play(state, self._is_idle[i], self._has_lost_life[i])

    def set_play(self, i: int, play: Play) -> None:
        """Let environment ``i`` go on from what `get_play` returned."""
        self._seed(i)
        self._simulators.set_state(i, play.state)
        self._is_idle[i], self._has_lost_life[i] = play.is_idle, play.has_lost_life

    def close(self) -> None:
        self._simulators.close()

    def _prepare_idle(self, out: Sequence[NDArray[Any]]) -> None:
        """Blank the next observations of those that wait; begin the episodes of others."""
        for i, is_idle in enumerate(self._is_idle):
            if is_idle and self._autoreset == "wait":
                out[i].fill(0)
            elif is_idle:
                self._begin_episode(i, out[i])

    def _check_masks(self, t: int) -> None:
        """Raises SamplerError where an episode goes on and no action is allowed."""
        rows = self._rollout.observation[t + 1, self._columns]
        for i in np.flatnonzero(~has_allowed(self._action, rows[ACTION_MASK])).tolist():
            b = self._indices[i]
            is_done = self._rollout.terminated[t, b] or self._rollout.truncated[t, b]
            if not (self._is_idle[i] or (is_done and self._autoreset == "Disabled")):
                self._check_mask(i, self._out[t + 1][i])

    def _check_mask(self, i: int, out: NDArray[Any]) -> None:
        if self._is_masked and not has_allowed(self._action, out.reshape(1)[ACTION_MASK])[0]:
            name = self.envs[i].spec.name
            raise SamplerError(f"environment {self._indices[i]} ({name}): {NOTHING_ALLOWED}")

    def _reset_ordered(self) -> None:
        orders = self._arrays.reset_order[self._columns].tolist()
        for i, order in enumerate(orders):
            if order == LEAVE:
                continue
            if order >= 0:
                self._seed(i, np.random.SeedSequence(order))
            if order != NEXT_EPISODE:
                self._has_lost_life[i] = False
            self._begin_episode(i, self._out[-1][i])
            self._is_idle[i] = False

    def _end_episode(self, t: int, i: int, keep_final: bool) -> None:
        index, out = self._indices[i], self._out[t + 1][i]
        if keep_final:
            final_step = self._rollout.final_step[:, index]
            slot = int(final_step.argmin())
            if final_step[slot] >= 0:
                raise too_many_truncated(index, self._rollout)
            self._rollout.final_observation[slot, index] = out
            final_step[slot] = t
        if self._autoreset in ("immediate", "SameStep"):
            self._begin_episode(i, out)
        elif self._autoreset != "Disabled":
            self._is_idle[i] = True
        if self._autoreset == "wait":
            out.fill(0)

    def _begin_episode(self, i: int, out: NDArray[Any]) -> None:
        """Reset environment ``i``, unless it has only lost a life and goes on by itself."""
        has_lost_life, self._has_lost_life[i] = self._has_lost_life[i], False
        if has_lost_life:
            self._arrays.reset_info[self._indices[i]] = np.nan
        else:
            self._seed(i)
            self._simulators.reset(i, out)
            self._check_mask(i, out)

    def _seed(self, i: int, seed: np.random.SeedSequence | None = None) -> None:
        """Seed environment ``i`` with ``seed``, or with its own if it was never seeded."""
        if seed is None and self._is_seeded[i]:
            return
        seed_generators(seed or self._seeds[i][0])
        self._simulators.seed(i, seed or self._seeds[i][0])
        self._is_seeded[i] = True

    def _take_random_steps(self, i: int, out: NDArray[Any], rng: np.random.Generator) -> None:
        """Take up to ``decorrelation_steps`` random actions; no rollout keeps their results."""
        env, b = self.envs[i], self._indices[i]
        num_steps = int(rng.integers(self._config.decorrelation_steps + 1))
        if not num_steps:
            return
        space, mask = env.spec.action, env.spec.mask
        actions = random_values(space, rng, num_steps) if mask is None else None
        spec = replace(self._config.rollout_spec(env.spec), T=1, B=self._rollout.action.shape[1])
        scratch = Rollout.allocate(replace(spec, observation=Leaf((), np.dtype(np.bool_))))
        simulators = Each([env], scratch, range(b, b + 1))
        for k in range(num_steps):
            if actions is None:
                scratch.action[0, b] = random_values(space, rng, 1, out.reshape(1)[ACTION_MASK])[0]
            else:
                scratch.action[0, b] = actions[k]
            if simulators.step(0, [out], [False])[0]:
                self._begin_episode(i, out)
            self._check_mask(i, out)
            self.count(1)
