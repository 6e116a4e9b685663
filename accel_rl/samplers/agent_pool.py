"""A pool of simulator processes that come and go, each a group of its own: GA3C's agents.

None of them waits for another. `AgentPool.take` gives those that are ready, in the order in which
they became so; `AgentPool.send` releases one for its next step. An agent holds a fixed share of the
environments; there is memory for the largest number of agents, and as many processes as were added.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from threading import RLock
from time import monotonic, perf_counter
from typing import NoReturn

from accel_rl.envs.base import EnvFactory
from accel_rl.rollout import RolloutSpec
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.errors import WorkerError
from accel_rl.samplers.limits import allow_open_files
from accel_rl.samplers.restart import truncate_running
from accel_rl.samplers.shared import CLOSE, GRACE_SECONDS
from accel_rl.samplers.stepping import Block
from accel_rl.samplers.workers import NICENESS, Workers
from accel_rl.topology import CorePlan

_CHECK_SECONDS = 0.25  # between two looks for agents that hang
_STOPPED_SECONDS = 5.0  # between two looks: nobody looked meanwhile, or nothing ran

_LOGGER = logging.getLogger(__name__)


class AgentPool:
    """Agents ``0 .. most_agents - 1``, of which some run; for one thread at a time, but for `send`
    and `close`.

    Agent ``a`` steps the columns ``columns[a]`` of ``rollout``. An agent is *ready* when it has
    begun, or has taken the step it was sent, and belongs to the caller from `take` to `send`. One
    that dies or hangs ends the pool with a `WorkerError` or is replaced, as ``on_worker_failure``
    says: its last step is then not valid and truncated.

    ``rollout``: ``T`` rows that each agent goes through again and again, its first observation in
    row ``T``. ``yields``: agents yield to a policy on their cores. ``fresh``: agents that were
    added and are not taken yet; ``lost``: agents that were replaced, likewise; whoever takes them
    empties both. ``sending``: while a thread holds it, no agent is released.

    Raises:
        SamplerError: this is not Linux.
        ValueError: the memory, or the number of open files, does not suffice.
    """

    def __init__(
        self,
        factory: EnvFactory,
        rollout_spec: RolloutSpec,
        config: SamplerConfig,
        seed: int,
        plan: CorePlan,
        envs_per_agent: int,
        *,
        yields: bool,
    ) -> None:
        most_agents = rollout_spec.B // envs_per_agent
        allow_open_files(most_agents, most_agents)  # before lists of their square
        self._config = config
        agents, cores = range(most_agents), plan.worker_cpus
        own = [range(a * envs_per_agent, (a + 1) * envs_per_agent) for a in agents]
        self.columns = [slice(each.start, each.stop) for each in own]
        nothing = range(0)  # once, for the square of the number of agents
        self._workers = Workers(
            factory,
            rollout_spec,
            config,
            seed,
            [cores[a % len(cores)] for a in agents],
            [[own[a] if g == a else nothing for g in agents] for a in agents],
            niceness=NICENESS if yields else 0,
            make_block=Block,
        )
        self.arrays = self._workers.arrays
        self.rollout = self.arrays.rollout
        self.fresh: set[int] = set()
        self.lost: set[int] = set()
        self.sending = RLock()
        self._agent_of = {ready: a for a, ready in enumerate(self._workers.ready)}
        self._ready: deque[int] = deque()
        self._starting: dict[int, float] = {}  # agents by their deadlines
        self._leaving: dict[int, float] = {}  # likewise; inf: not told yet
        self._dead: dict[int, WorkerError] = {}
        self._late: set[int] = set()
        self._given_back: set[int] = set()
        self._done = self.arrays.done.diagonal()
        self._noted = [0] * most_agents  # the last order that was seen to be done
        self._used: set[int] = set()
        self._num_restarts = 0
        self._checked = monotonic()

    @property
    def is_closed(self) -> bool:
        return self._workers.is_closed

    @property
    def agents(self) -> list[int]:
        """Those that run, or begin to."""
        return [a for a in list(self._workers.processes) if a not in self._leaving]

    @property
    def num_ready(self) -> int:
        """Agents known to be ready that nobody has taken."""
        return len(self._ready)

    @property
    def num_starting(self) -> int:
        """Agents that were added and have not begun."""
        return len(self._starting)

    @property
    def generation(self) -> int:
        """How often environments have started anew."""
        return self._workers.generation

    def generation_of(self, agent: int) -> int:
        """That in which the environments of a running agent started."""
        return self._workers.processes[agent].setup.restart

    @property
    def busy_seconds(self) -> float:
        """Time that all agents that ever ran have spent in their simulators."""
        return float(self.arrays.busy_seconds.sum())

    def add(self) -> int | None:
        """Start one more agent, without waiting for it; None if all places are taken."""
        running = self._workers.processes
        agent = next((a for a in range(len(self.columns)) if a not in running), None)
        if agent is not None:
            self._workers.generation += agent in self._used
            self._used.add(agent)
            self.fresh.add(agent)
            self._start(agent, self._workers.spec.rollout.T)
        return agent

    def await_start(self) -> None:
        """Wait until those that were added have begun.

        Raises:
            WorkerError: one failed, or took longer than ``reset_timeout_seconds``.
            SamplerError: this was closed meanwhile.
        """
        with self._workers:
            while self._starting:
                self._poll(_CHECK_SECONDS)
                self._workers.check_open()
                self._check()

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that made this, and may not use it."""
        return self._workers.inherited_from != 0

    def check_own(self) -> None:
        """Raises SamplerError if `is_inherited`."""
        if self.is_inherited:
            self._workers.check_open()

    def retire(self, agents: list[int]) -> None:
        """Let agents that were taken go at their next `send`."""
        self._leaving.update(dict.fromkeys(agents, math.inf))

    def send(self, agents: list[int], rows: list[int]) -> None:
        """Release agents that were taken to take these steps; end those that were retired.

        Waits for no agent. In a pool that was closed it does nothing.
        """
        workers = self._workers
        with self.sending:
            if self.is_closed:
                return
            with workers:
                for agent, row in zip(agents, rows, strict=True):
                    if agent in self._leaving:
                        workers.release(agent, row, CLOSE)
                        self._leaving[agent] = monotonic() + self._config.step_timeout_seconds
                    else:
                        workers.release(agent, row)

    def take(self, limit: int, timeout_seconds: float) -> list[int]:
        """Up to ``limit`` agents that are ready: those first that were so first.

        Waits until something happens, or so long; there may be none.

        Raises:
            WorkerError: an agent died or hung and is not to be replaced; the pool is closed then.
            SamplerError: this was closed.
        """
        with self._workers:
            self._settle_dead()
            self._poll(0.0 if self._ready else timeout_seconds)
            if monotonic() - self._checked > _CHECK_SECONDS:
                self._check()
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    def close(self, grace_seconds: float = 5.0) -> None:
        """End all agents, by force after ``grace_seconds``. Calling it again does nothing."""
        with self.sending:
            self._workers.close(grace_seconds)

    def _start(self, agent: int, row: int, *, is_replacement: bool = False) -> None:
        self._noted[agent] = int(self.arrays.sequence[agent])
        rows = [row] * len(self.columns)
        self._workers.start(agent, rows, {}, is_replacement=is_replacement)
        self._starting[agent] = monotonic() + self._config.reset_timeout_seconds

    def _poll(self, seconds: float) -> None:
        """Note what has happened, waiting so long for something."""
        workers = self._workers
        for descriptor in workers.poll(seconds):
            agent = self._agent_of.get(descriptor)
            if agent is not None:
                self._note_done(agent)
            elif descriptor == workers.started:
                self._note_started()
            else:
                agent = workers.worker_of[descriptor]
                workers.unwatch(agent)
                self._dead[agent] = workers.processes[agent].failure()
        self._settle_dead()

    def _note_started(self) -> None:
        for agent in [a for a in self._starting if self.arrays.has_started[a]]:
            del self._starting[agent]
            self.arrays.done_at[agent] = perf_counter()
            self._ready.append(agent)

    def _note_done(self, agent: int) -> None:
        """Note that an agent is ready, if it has an order and has carried it out.

        Only after its eventfd was seen to be written, see `SharedArrays`.
        """
        order = int(self.arrays.sequence[agent])
        if order != self._noted[agent] and order == self._done[agent]:
            self._noted[agent] = order
            self._ready.append(agent)

    def _owes(self, agent: int) -> bool:
        """Whether it was sent and is not known to have come back."""
        return bool(self.arrays.sequence[agent] != self._noted[agent])

    def _settle_dead(self) -> None:
        """Replace agents whose processes are gone: those that ran, as soon as they have an order
        to take over."""
        for agent, error in list(self._dead.items()):
            if agent in self._leaving:
                if self._leaving[agent] < math.inf:  # nobody is about to use its place
                    del self._dead[agent], self._leaving[agent]
                    self._workers.forget(agent)
            elif agent in self._starting or self._owes(agent):
                del self._dead[agent]
                self._replace(agent, error)

    def _check(self) -> None:
        """Look for agents that are late.

        One hangs that is late twice in a row: if this process was stopped (by Ctrl-Z, say), they
        were, too. Those that start, which takes longer, get the time back, once.
        """
        before, self._checked = self._checked, monotonic()
        now, workers = self._checked, self._workers
        for agent, deadline in self._starting.items():
            if now - before > _STOPPED_SECONDS and agent not in self._given_back:
                self._given_back.add(agent)  # once: looks may always be so far apart
                self._starting[agent] = deadline + now - before
            elif now > deadline and not self.arrays.has_started[agent]:
                self._fail(workers.late_start(agent))
        self._given_back &= self._starting.keys()
        for agent, deadline in list(self._leaving.items()):
            if now > deadline:
                workers.processes[agent].kill()
        late = set()
        for agent in set(workers.processes) - set(self._leaving):
            if self._owes(agent) and now > (workers.deadlines[agent] or now):
                if agent in self._late:
                    self._replace(agent, workers.hung(agent, agent))
                else:
                    late.add(agent)
        self._late = late

    def _replace(self, agent: int, error: WorkerError) -> None:
        """Put a new process in the place of one lost in a step or at its start; or end the pool."""
        workers, config = self._workers, self._config
        if error.worker_traceback or config.on_worker_failure == "raise":
            self._fail(error)
        if self._num_restarts == config.max_worker_restarts:
            self._fail(
                WorkerError(f"{error}; max_worker_restarts={self._num_restarts} are used up")
            )
        self._num_restarts += 1
        workers.generation += 1
        if agent in self._starting:
            _LOGGER.warning("%s; replaced", error)
            row = workers.processes[agent].setup.start_rows[0]
        else:
            _LOGGER.warning("%s; replaced, its running episodes count as truncated", error)
            row = self._lose_step(agent)
        workers.forget(agent)
        self._start(agent, row, is_replacement=agent not in self.fresh)

    def _lose_step(self, agent: int) -> int:
        """End the running episodes of an agent; the row behind the step that it did not take."""
        row = int(self.arrays.row[agent])
        columns = self._workers.spec.columns[agent][agent]
        # Final observations of earlier rows are used: there is a slot for that of this one.
        self.rollout.final_step[:, columns.start : columns.stop] = -1
        truncate_running(self.rollout, columns, row, is_done=False, waits=False)
        self.lost.add(agent)
        return row + 1

    def _fail(self, error: WorkerError) -> NoReturn:
        self.close(GRACE_SECONDS)
        raise error
