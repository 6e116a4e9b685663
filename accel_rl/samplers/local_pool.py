"""Environments in this process, stepped by the same two calls as a pool of worker processes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Protocol

import numpy as np

from accel_rl.envs.base import EnvFactory, Environment, close_envs
from accel_rl.envs.batched import Simulators
from accel_rl.envs.errors import EnvError
from accel_rl.envs.reach import Answer, Request
from accel_rl.rollout import Rollout, RolloutSpec
from accel_rl.samplers.base import (
    Autoreset,
    SamplerConfig,
    SamplerError,
    check_memory,
    of_another_process,
    was_closed,
)
from accel_rl.samplers.block import (
    Block,
    BlockArrays,
    Carry,
    EnvStates,
    as_list,
    check_distinct,
    count_nothing,
    environment_seed,
)
from accel_rl.samplers.boundary import Place
from accel_rl.samplers.generators import State, get_generators, set_generators
from accel_rl.samplers.layout import group_columns
from accel_rl.samplers.make_block import make_block, make_envs
from accel_rl.samplers.orders import RESET, STEP
from accel_rl.samplers.shared import LOOK_SECONDS
from accel_rl.system.functions import FAILURES
from accel_rl.system.topology import warn_once


class Pool(Protocol):
    """Groups of environments that step when they are released: `LocalPool` or `WorkerPool`.

    Before each `send`, the caller has written the group's actions into ``arrays.rollout``. From
    then until `recv` returns the group, its columns belong to the pool, afterwards to the caller.

    Attributes:
        arrays: the rollout and what else environments write into.
        columns: the columns of each group.
        generation: number of times that environments were replaced.
        num_workers: processes that simulate.
        busy_seconds: time that all of them together have spent in their simulators.
        lost: rows and environments at which an episode was cut off because its worker was lost. The
            sampler empties it.
        replaced: environments that were replaced between two rollouts, which no row shows. The
            sampler empties it.
        look: called a few times a second while environments start, with the number of random first
            steps that they have taken. What it raises ends the start.
    """

    arrays: BlockArrays
    columns: list[slice]
    lost: set[Place]
    replaced: list[int]
    look: Callable[[int], object]

    @property
    def generation(self) -> int: ...

    @property
    def num_workers(self) -> int: ...

    @property
    def busy_seconds(self) -> float: ...

    @property
    def is_closed(self) -> bool: ...

    def check_open(self) -> None:
        """Raise SamplerError if this was closed, or belongs to another process."""
        ...

    def start(
        self, groups: Sequence[int], row: int, states: EnvStates | None = None, generation: int = 0
    ) -> None:
        """Start the environments of ``groups``; `recv` returns each group when it has started.

        Args:
            groups: the groups.
            row: row of the first observations.
            states: states from which environments continue; the row has their observations already.
                Environments that refuse their state start new episodes, with first observations in
                the carry.
            generation: environments of different generations have different random numbers.

        Raises:
            SamplerError: started before, or closed, or this system allows no more processes.
        """
        ...

    def send(self, groups: Sequence[int], rows: Sequence[int], command: int = STEP) -> None:
        """Release ``groups`` to take step ``rows[i]``, or for another command; does not wait."""
        ...

    def is_released(self, group: int) -> bool:
        """Whether ``group`` was started or sent, and `recv` has not returned it since."""
        ...

    def recv(
        self, groups: Sequence[int] | None = None, limit: int = 1, timeout: float = math.inf
    ) -> list[int]:
        """Wait for released groups; return those that are ready, the first ones first.

        Args:
            groups: the groups to wait for; None: any.
            limit: the largest number of groups to return.
            timeout: seconds after which to return even if no group is ready.

        Raises:
            WorkerError: a worker died or hung and is not to be replaced; the pool is closed then.
            SamplerError: this was closed, perhaps meanwhile.
        """
        ...

    def get_states(self) -> EnvStates:
        """Return the state of every environment, when all groups are ready.

        Raises:
            WorkerError: as `recv`, or an environment fails to tell its state.
        """
        ...

    def take_refused(self) -> EnvStates:
        """Return why environments have not taken the states that they were started with."""
        ...

    def call(self, request: Request) -> dict[int, Answer]:
        """Call a function in single environments, when all groups are ready.

        Raises:
            TypeError: the request cannot be pickled.
            WorkerError: as `recv`.
        """
        ...

    def close(self, grace_seconds: float = 5.0) -> None:
        """Close the environments. Calling it again does nothing."""
        ...


def recv_all(pool: Pool) -> None:
    """Wait until no group is released any more."""
    groups = range(len(pool.columns))
    while any(map(pool.is_released, groups)):
        pool.recv(limit=len(groups))


class LocalPool:
    """A `Pool` in this process: the work of a group is done when `recv` asks for it.

    Needs no worker, no shared memory and no Linux. Attributes and methods are those of `Pool`.

    Args:
        factory: makes one environment.
        spec: the rollout.
        config: the sampler's settings.
        seed: the sampler's seed.
        num_groups: equal groups of environments.
        autoreset: as in `Block`.

    Raises:
        ValueError: the free memory does not suffice.
    """

    num_workers = 1

    def __init__(
        self,
        factory: EnvFactory,
        spec: RolloutSpec,
        config: SamplerConfig,
        seed: int,
        num_groups: int = 1,
        autoreset: Autoreset | None = None,
    ) -> None:
        check_memory(spec)
        rollout = Rollout.allocate(spec)
        carry = Carry(np.zeros_like(rollout.observation[0]), np.zeros(spec.B, np.bool_))
        reset_info = np.zeros_like(rollout.info[0])
        self.arrays = BlockArrays(spec, rollout, carry, np.zeros(spec.B, np.int64), reset_info)
        self.columns = group_columns(spec.B, num_groups)
        self.lost: set[Place] = set()
        self.replaced: list[int] = []
        self.look: Callable[[int], object] = count_nothing
        self._num_first_steps, self._looked_at = 0, 0.0
        self.generation = 0
        self.busy_seconds = 0.0
        self.is_closed = False
        self._config, self._seed, self._autoreset = config, seed, autoreset
        # Of this process, whose environments seed and use them until they are closed.
        self._generators: State | None = get_generators()
        self._blocks: list[Block] = []
        self._envs: list[list[Environment] | Simulators] = []
        self._orders: dict[int, tuple[int, int]] = {}  # command and row of what is released
        self._pid = os.getpid()
        try:
            for columns in self.columns:
                first = environment_seed(seed, columns.start)
                self._envs.append(make_envs(factory, columns, self.arrays.spec, first))
            check_distinct([as_list(each) for each in self._envs])
        except BaseException:
            self.close()
            raise

    def check_open(self) -> None:
        # Programs and connections of the environments belong to the parent of a fork.
        if self._pid != os.getpid():
            raise of_another_process(self._pid)
        if self.is_closed:
            raise was_closed()

    def start(
        self, groups: Sequence[int], row: int, states: EnvStates | None = None, generation: int = 0
    ) -> None:
        self.check_open()
        if self._blocks:
            raise SamplerError("this sampler was started before; make another one")
        self.generation = generation
        try:
            config, seed, mode = self._config, self._seed, self._autoreset
            for columns, envs in zip(self.columns, self._envs, strict=True):
                block = make_block(envs, columns, self.arrays, config, seed, generation, mode)
                block.count = self._count
                self._blocks.append(block)
            for group in groups:
                self._blocks[group].start(row, states)
                self._orders[group] = (0, row)
        except BaseException:
            self.close()
            raise

    def _count(self, num_steps: int) -> None:
        self._num_first_steps += num_steps
        now = perf_counter()
        if now > self._looked_at + LOOK_SECONDS:
            self._looked_at = now
            self.look(self._num_first_steps)

    def send(self, groups: Sequence[int], rows: Sequence[int], command: int = STEP) -> None:
        self.check_open()
        for group, row in zip(groups, rows, strict=True):
            self._orders[group] = (command, row)

    def is_released(self, group: int) -> bool:
        return group in self._orders

    def recv(
        self, groups: Sequence[int] | None = None, limit: int = 1, timeout: float = math.inf
    ) -> list[int]:
        self.check_open()
        ready = [g for g in self._orders if groups is None or g in groups][:limit]
        began = perf_counter()
        for group in ready:
            try:
                command, row = self._orders[group]
                if command == STEP:
                    self._blocks[group].step(row)
                elif command == RESET:
                    self._blocks[group].reset()
                del self._orders[group]
            except BaseException:  # Ctrl-C, too, within a step of which nobody knows the rest
                with suppress(*FAILURES):
                    self.close()
                raise
        self.busy_seconds += perf_counter() - began
        return ready

    def get_states(self) -> EnvStates:
        recv_all(self)
        return {b: state for block in self._blocks for b, state in block.get_states().items()}

    def take_refused(self) -> EnvStates:
        return {b: why for block in self._blocks for b, why in block.refused.items()}

    def call(self, request: Request) -> dict[int, Answer]:
        recv_all(self)
        return {b: answer for block in self._blocks for b, answer in block.call(request).items()}

    def close(self, grace_seconds: float = 5.0) -> None:
        """Close the environments. Calling it again does nothing, nor does it in a fork."""
        if self._pid == os.getpid():
            self.is_closed = True
            generators, self._generators = self._generators, None
            if generators is not None:
                set_generators(generators)
            envs, self._envs, self._blocks = self._envs, [], []
            try:
                close_envs([each for group in envs for each in as_list(group)])
            except EnvError as error:  # what led here matters more
                warn_once(str(error))
