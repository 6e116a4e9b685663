"""A pool of simulator processes that come and go, each a group of its own: GA3C's agents.

None of them waits for another. `AgentPool.take` gives those that are ready, in the order in which
they became so; `AgentPool.send` releases one for its next step. An agent holds a fixed share of the
environments; there is memory for the largest number of agents, and as many processes as were added.
"""

from __future__ import annotations

import logging
import os
import resource
from collections import deque
from time import monotonic
from typing import NoReturn

from accel_rl.envs.base import EnvFactory
from accel_rl.rollout import RolloutSpec
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.errors import WorkerError
from accel_rl.samplers.restart import truncate_running
from accel_rl.samplers.shared import CLOSE, take
from accel_rl.samplers.stepping import Block
from accel_rl.samplers.workers import GRACE_SECONDS, NICENESS, Workers
from accel_rl.topology import CorePlan

_CHECK_SECONDS = 0.25  # between two looks for agents that hang
_DESCRIPTORS = 8  # open files of an agent, in this process

_LOGGER = logging.getLogger(__name__)


class AgentPool:
    """Agents ``0 .. most_agents - 1``, of which some run; for one thread at a time, but for `send`.

    Agent ``a`` steps the columns ``columns[a]`` of ``rollout``. An agent is *ready* when it has
    begun, or has taken the step it was sent, and belongs to the caller from `take` to `send`. One
    that dies or hangs ends the pool with a `WorkerError` or is replaced, as ``on_worker_failure``
    says: its last step is then not valid and truncated.

    ``rollout``: ``T`` rows that each agent goes through again and again, its first observation in
    row ``T``. ``yields``: agents yield to a policy on their cores. ``fresh``: agents that were
    added and are not taken yet; ``lost``: agents that were replaced, likewise; whoever takes them
    empties both.

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
        _allow_open_files(most_agents)
        self._config = config
        agents, cores = range(most_agents), plan.worker_cpus
        own = [range(a * envs_per_agent, (a + 1) * envs_per_agent) for a in agents]
        self.columns = [slice(each.start, each.stop) for each in own]
        self._workers = Workers(
            factory,
            rollout_spec,
            config,
            seed,
            [cores[a % len(cores)] for a in agents],
            [[own[a] if g == a else range(0) for g in agents] for a in agents],
            niceness=NICENESS if yields else 0,
            make_block=Block,
        )
        self.arrays = self._workers.arrays
        self.rollout = self.arrays.rollout
        self.fresh: set[int] = set()
        self.lost: set[int] = set()
        self._agent_of = {ready: a for a, ready in enumerate(self._workers.ready)}
        self._ready: deque[int] = deque()
        self._starting: dict[int, float] = {}  # agents by their deadlines
        self._leaving: dict[int, float] = {}
        self._dead: dict[int, WorkerError] = {}
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

    @property
    def busy_seconds(self) -> float:
        """Time that all agents that ever ran have spent in their simulators."""
        return float(self.arrays.busy_seconds.sum())

    def add(self, generation: int = 0) -> int | None:
        """Start one more agent, without waiting for it; None if all places are taken.

        ``generation``: environments of others of the same seed have other random numbers.
        """
        running = self._workers.processes
        agent = next((a for a in range(len(self.columns)) if a not in running), None)
        if agent is not None:
            self._workers.generation += agent in self._used
            self._workers.generation = max(generation, self._workers.generation)
            self._used.add(agent)
            self.fresh.add(agent)
            self._start(agent, self._workers.spec.rollout.T)
        return agent

    def await_start(self) -> None:
        """Wait until those that were added have begun.

        Raises:
            WorkerError: one failed, or took longer than ``reset_timeout_seconds``.
        """
        while self._starting:
            self._poll(_CHECK_SECONDS)
            self._check()

    def dismiss(self, agent: int) -> None:
        """End an agent that was taken, without waiting for it."""
        self._workers.release(agent, 0, CLOSE)
        self._workers.deadlines[agent] = None
        self._leaving[agent] = monotonic() + self._config.step_timeout_seconds

    def send(self, agent: int, row: int) -> None:
        """Release an agent that was taken to take step ``row``."""
        self._workers.release(agent, row)

    def take(self, limit: int, timeout_seconds: float) -> list[int]:
        """Up to ``limit`` agents that are ready: those first that were so first.

        Waits until there is one, or so long; then there may be none.

        Raises:
            WorkerError: an agent died or hung and is not to be replaced; the pool is closed then.
        """
        self._settle_dead()
        self._poll(0.0)
        if not self._ready:
            self._poll(timeout_seconds)
        if monotonic() - self._checked > _CHECK_SECONDS:
            self._check()
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    def close(self, grace_seconds: float = 5.0) -> None:
        """End all agents, by force after ``grace_seconds``. Calling it again does nothing."""
        self._workers.close(grace_seconds)

    def _start(self, agent: int, row: int) -> None:
        self._workers.start(agent, [row] * len(self.columns), {})
        self._starting[agent] = monotonic() + self._config.reset_timeout_seconds

    def _poll(self, seconds: float) -> None:
        """Note what has happened, waiting so long for something."""
        workers = self._workers
        happened = workers.poll(seconds)
        for descriptor in happened:
            agent = self._agent_of.get(descriptor)
            if agent is not None and take(descriptor):
                self._note_done(agent)
        if workers.started in happened and take(workers.started):
            for agent in [a for a in self._starting if self.arrays.has_started[a]]:
                del self._starting[agent]
                self._ready.append(agent)
        for agent, process in list(workers.processes.items()):
            if process.pidfd in happened:
                workers.unwatch(agent)
                self._dead[agent] = process.failure()
        self._settle_dead()

    def _note_done(self, agent: int) -> None:
        workers = self._workers
        if workers.deadlines[agent] is not None and workers.is_done(agent):
            workers.deadlines[agent] = None
            self._ready.append(agent)

    def _settle_dead(self) -> None:
        """Replace agents whose processes are gone, as soon as they have an order to take over."""
        for agent, error in list(self._dead.items()):
            self._note_done(agent)  # it may have died between its work and its signal
            if agent in self._leaving:
                del self._dead[agent], self._leaving[agent]
                self._workers.forget(agent)
            elif agent in self._starting:
                self._fail(error)
            elif self._workers.deadlines[agent] is not None:
                del self._dead[agent]
                self._replace(agent, error)

    def _check(self) -> None:
        """Look for agents that are late."""
        self._checked = now = monotonic()
        workers = self._workers
        for agent, deadline in self._starting.items():
            if now > deadline:
                self._fail(workers.late_start(agent))
        for agent, deadline in self._leaving.items():
            if now > deadline:
                workers.processes[agent].kill()
        for agent in list(workers.processes):
            due = workers.deadlines[agent]
            if due is not None and now > due:
                self._note_done(agent)
                if workers.deadlines[agent] is not None:
                    self._replace(agent, workers.hung(agent, agent))

    def _replace(self, agent: int, error: WorkerError) -> None:
        """Put a fresh process in the place of one lost in a step, or end the pool."""
        workers, config = self._workers, self._config
        if error.worker_traceback or config.on_worker_failure == "raise":
            self._fail(error)
        if self._num_restarts == config.max_worker_restarts:
            self._fail(
                WorkerError(f"{error}; max_worker_restarts={self._num_restarts} are used up")
            )
        self._num_restarts += 1
        workers.generation += 1
        _LOGGER.warning("%s; replaced, its running episodes count as truncated", error)
        workers.forget(agent)
        row = int(self.arrays.row[agent])
        columns = workers.spec.columns[agent][agent]
        truncate_running(self.rollout, columns, row, is_done=False, waits=False)
        workers.deadlines[agent] = None
        self.lost.add(agent)
        self._start(agent, row + 1)

    def _fail(self, error: WorkerError) -> NoReturn:
        self.close(GRACE_SECONDS)
        raise error


def _allow_open_files(num_agents: int) -> None:
    """Raise this process' limit of open files as far as so many agents need it.

    Raises:
        ValueError: it cannot be raised so far.
    """
    needed = num_agents * _DESCRIPTORS + len(os.listdir("/proc/self/fd")) + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"{num_agents} agents need {needed} open files, and `ulimit -Hn` allows {hard}; use "
            f"fewer agents with more environments each (a smaller num_groups or max_agents)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
