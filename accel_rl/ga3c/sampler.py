"""The queued sampler: agents that never wait for each other, predictors and trainers (GA3C).

Babaeizadeh et al. 2017 (arXiv:1611.06256), section 4. Agents are worker processes, each a group of
its own. The *prediction queue* is those that are ready: an agent is in it once at most, so that it
is bounded by their number. Predictors, threads that call `QueuedSampler.serve` again and again,
take whatever is there, choose the actions in one go and release the agents. What ends of their
segments goes to the *training queue*, from which trainers take it. A full training queue makes
predictors wait, and these the agents: its size and the number of environments, whose segments fill
meanwhile, bound how old experience can be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import add
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accel_rl.ga3c.queue import ClosableQueue, PriorityLock, QueueClosed
from accel_rl.ga3c.segments import EnvNoise, Segment, Segments, Taken
from accel_rl.options import check_kind, format_value
from accel_rl.samplers.base import (
    SamplerConfig,
    SamplerError,
    SamplerState,
    SamplerTimes,
    check_arguments,
    name_error,
)
from accel_rl.samplers.boundary import Place
from accel_rl.samplers.layout import EnvSlice
from accel_rl.samplers.pool import WorkerPool
from accel_rl.samplers.sampler import PoolSampler
from accel_rl.samplers.workers import NICENESS
from accel_rl.spaces import write_values
from accel_rl.system.topology import plan_cores

TAKE_SECONDS = 0.1
"""that a predictor waits for agents before it looks whether it is to stop"""
QUEUE_SECONDS = 600.0
"""that a predictor waits before a full training queue"""


class Prediction(NamedTuple):
    """The output of a policy for ``n`` environments.

    Attributes:
        action: Actions.
        value: Values of the ``n + m`` observations that the policy was given.
        version: Number of the parameters that acted.
        behaviour_probability: Probability of each action, for `Segment`. None: unknown.
    """

    action: NDArray[np.int64]  # [n]
    value: NDArray[np.float32]  # [n + m]
    version: int
    behaviour_probability: NDArray[np.float32] | None = None  # [n]


QueuedPolicy = Callable[..., Prediction]
"""Function of observations ``[n + m, ...]`` and noise ``[n]``. Actions are for the first ``n``
observations; the others end truncated episodes, and only need a value."""


class QueueTimes(NamedTuple):
    """Sums over all predictions (one for each environment and step) since the start."""

    predictions: int = 0  # actions that were chosen
    batches: int = 0  # calls of the policy
    queued: int = 0  # agents left in the prediction queue at each take
    latency: float = 0.0  # seconds from an agent's being ready to its release, of each prediction
    predictor_waiting: float = 0.0  # seconds of predictors without any agent
    predictor_busy: float = 0.0  # seconds of predictors from taking agents to releasing them
    predictor_blocked: float = 0.0  # seconds of predictors before a full training queue


class _Ready(NamedTuple):
    """Agents that were taken from the prediction queue."""

    agents: list[int]  # in the order in which they became ready
    fresh: set[int]  # that have taken no step yet
    lost: set[Place]  # where a last step was lost with its worker
    num_leaving: int  # of ``agents``, the first ones, are to end
    num_queued: int  # agents left in the queue
    waited: float  # sum of the seconds for which their environments have been ready


class QueuedSampler(PoolSampler):
    """Agents, each with ``num_envs / num_groups`` environments, and the two queues.

    Threads may call anything at any time.

    Args:
        config: The settings. ``horizon`` is the maximum length of a segment.
        cpus: CPUs to which agents may be pinned. None: all that this process may use.
        max_prediction_batch: Maximum number of environments in one call of the policy, but at least
            those of one agent.

    Attributes:
        steps: Number of steps taken so far.
        training_queue: Segments, for trainers.
        queue_times: What predictors have done so far.
    """

    _pool: WorkerPool

    def __init__(
        self,
        env: str | Callable[[], Any],
        config: SamplerConfig,
        seed: int = 0,
        cpus: list[int] | None = None,
        drives_gpu: bool = False,
        *,
        max_agents: int,
        max_prediction_batch: int,
        training_queue_size: int,
        gamma: float,
        bootstrap_on_truncation: bool = True,
    ) -> None:
        check_arguments(config, seed)
        check_queued(config, gamma, max_agents, max_prediction_batch, training_queue_size)
        super().__init__(env, config, seed)
        self.plan = plan_cores(drives_gpu=drives_gpu, cpus=cpus)
        self.env_spec.check_plain("QueuedSampler (algo=ga3c)")
        self._envs_per_agent = config.num_envs // config.num_groups
        num_envs = max_agents * self._envs_per_agent
        self.rollout_spec = replace(self.rollout_spec, T=config.horizon + 1, B=num_envs)
        cores = [self.plan.worker_cpus[a % len(self.plan.worker_cpus)] for a in range(max_agents)]
        size = self._envs_per_agent
        slices = [EnvSlice(a, a, range(a * size, (a + 1) * size)) for a in range(max_agents)]
        niceness = 0 if drives_gpu else NICENESS
        pool = WorkerPool(self._factory, self.rollout_spec, config, seed, cores, slices, niceness)
        self._use(pool)
        self._segments = Segments(
            self.rollout, config.horizon, gamma, bootstrap_on_truncation=bootstrap_on_truncation
        )
        self._noise = EnvNoise(seed, num_envs)
        self.max_agents = max_agents
        self._limit = max(1, max_prediction_batch // self._envs_per_agent)
        self.training_queue = ClosableQueue[Segment](training_queue_size)
        self._taking = PriorityLock()  # who has it is the one thread that uses the pool
        self._counting = threading.Lock()
        self._num_surplus = self._num_missing = 0  # agents to go or come as soon as they can
        self._fresh: set[int] = set()  # agents that were added and have not been served
        self._paused_seconds = self._resumed_at = 0.0
        self.steps = 0
        self.queue_times = QueueTimes()

    @property
    def most_predicted(self) -> int:
        """Maximum number of environments for which a policy acts at once."""
        return self._limit * self._envs_per_agent

    def _start(self, state: SamplerState | None) -> None:
        """Start ``num_groups`` agents, and wait until they have started."""
        if state is not None:
            raise ValueError("state was given; a QueuedSampler takes none: leave it out")
        self._add(self.config.num_groups)
        self._pool.await_start()

    @property
    def num_agents(self) -> int:
        """Agents that run and are to go on."""
        return len(self._pool.running) - self._num_surplus

    @property
    def num_starting(self) -> int:
        """Agents that were added and have not begun."""
        return self._pool.num_starting

    def set_num_agents(self, num_agents: int) -> None:
        """Add agents, or retire some when they are ready next, without waiting for that.

        Does nothing in a sampler that was not started, or was closed.
        """
        check_kind(int, num_agents=num_agents)
        if not 1 <= num_agents <= self.max_agents:
            raise ValueError(
                f"num_agents is {num_agents}; it must be 1 to max_agents={self.max_agents}"
            )
        if self._pool.is_inherited:
            self._pool.check_open()
        with self._taking.urgently():
            if not self.is_running or self._pool.is_closed:
                return
            change = num_agents - len(self._pool.running)
            self._num_surplus, self._num_missing = max(0, -change), max(0, change)
            self._add_missing()

    def _add_missing(self) -> None:
        """Add agents while there are places; those of agents that still go become free later."""
        self._num_missing -= self._add(self._num_missing)

    def _add(self, number: int) -> int:
        """Start up to ``number`` agents, without waiting for them; return how many."""
        added = self._pool.free[:number]
        for agent in added:
            self._fresh.add(agent)
            self._pool.start([agent], self.rollout_spec.T)
        return len(added)

    def serve(self, policy: QueuedPolicy) -> int:
        """Take ready agents, act for them, and release them: one round of a predictor.

        Return the number of their environments; 0 if none was ready for `TAKE_SECONDS`. Any error
        but `QueueClosed` closes the sampler. The `QueueClosed` of other threads, of the training
        queue too, name it.

        Raises:
            QueueClosed: the sampler was closed, or its training queue.
            WorkerError: an agent died or hung and is not to be replaced.
            SamplerError: this process is a fork of the one that started this.
            ValueError: the policy returned something else than valid actions.
            TimeoutError: the training queue was full for `QUEUE_SECONDS`.
        """
        if self._pool.is_inherited:  # where locks may be held by threads that are not there
            self._pool.check_open()
        try:
            return self._serve(policy)
        except QueueClosed:
            raise
        except BaseException as error:
            self._ended_by = name_error(error)
            self.training_queue.close(self._ended_by)
            self.close()
            raise

    def _serve(self, policy: QueuedPolicy) -> int:
        began = self._clock()
        with self._taking.in_turn():
            ready = self._take_ready()
        taken_at = self._clock()
        if ready is None:
            self._count(QueueTimes(predictor_waiting=taken_at - began))
            return 0
        taken, steps = self._take_steps(ready)
        n = len(taken.columns)
        prediction = policy(self._segments.observations(taken), self._noise.take(taken.columns))
        segments, rows = self._follow(taken, prediction)
        self._release(ready.agents, rows)
        released = self._clock()
        self._count(
            QueueTimes(
                predictions=n,
                batches=1,
                queued=ready.num_queued,
                latency=ready.waited + n * (released - taken_at),
                predictor_waiting=taken_at - began,
                predictor_busy=released - taken_at,
            ),
            steps,
        )
        if segments:
            self.training_queue.put(segments, QUEUE_SECONDS)
            self._count(QueueTimes(predictor_blocked=self._clock() - released))
        return n

    def _take_ready(self) -> _Ready | None:
        """Take agents from the prediction queue, or wait for some. The caller has `_taking`."""
        pool = self._pool
        if not self.is_running or pool.is_closed:
            why = f" by an error ({self._ended_by})" if self._ended_by else ""
            raise QueueClosed(
                f"this sampler is not running: it was not started, or was closed{why}"
            )
        if self._num_missing:
            self._add_missing()
        agents = pool.recv(limit=self._limit, timeout=TAKE_SECONDS)
        if not agents:
            return None
        ready_at = np.maximum(pool.done_at(agents), self._resumed_at)
        waited = float((perf_counter() - ready_at).sum()) * self._envs_per_agent
        fresh = self._fresh.intersection(agents)
        self._fresh -= fresh
        leaving = agents[: self._num_surplus]
        if leaving:
            self._num_surplus -= len(leaving)
            pool.retire(leaving)
        lost = {(t, b) for t, b in pool.lost if b // self._envs_per_agent in agents}
        pool.lost -= lost
        return _Ready(agents, fresh, lost, len(leaving), pool.num_ready, waited)

    def _take_steps(self, ready: _Ready) -> tuple[Taken, int]:
        """Take in the agents' last steps; return them and their number."""
        m = self._envs_per_agent
        columns = (np.array(ready.agents)[:, None] * m + np.arange(m)).ravel()
        has_stepped = np.ones(len(columns), np.bool_)
        for agent in ready.fresh:
            own = self._pool.columns[agent]
            self._segments.begin(own)
            self._tracker.forget(own)
            self._noise.begin(own, self._pool.generation_of(agent))
            has_stepped[columns // m == agent] = False
        taken = self._segments.take(columns, has_stepped)
        taken.is_closing[: ready.num_leaving * m] = True  # nothing of them is lost
        at = taken.row[has_stepped], columns[has_stepped]
        self._tracker.update(self.rollout, ready.lost, at)
        return taken, int(np.count_nonzero(self.rollout.valid[taken.row, columns]))

    def _release(self, agents: list[int], rows: NDArray[np.int64]) -> None:
        """Let ``agents`` step, each in the row of its environments."""
        try:
            self._pool.send(agents, rows[:: self._envs_per_agent].tolist())
        except SamplerError:
            if not self._pool.is_closed:  # by another thread; the training queue says so
                raise

    def _follow(self, taken: Taken, prediction: object) -> tuple[list[Segment], NDArray[np.int64]]:
        """Take in a `Prediction`; return segments that end here, and rows of the next steps."""
        if not isinstance(prediction, Prediction):
            raise ValueError(
                f"the policy returned {type(prediction).__name__}; of a QueuedSampler it must "
                f"return a Prediction: actions, values, and the version of its parameters"
            )
        n, m = len(taken.columns), len(taken.final)
        action = np.empty(n, np.int64)
        write_values(self.env_spec.action, prediction.action, action)
        probability = prediction.behaviour_probability
        if probability is not None:
            probability = _check_values(probability, n, "probabilities")
        segments = self._segments.cut(taken, _check_values(prediction.value, n + m))
        return segments, self._segments.act(taken, action, prediction.version, probability)

    def _count(self, times: QueueTimes, steps: int = 0) -> None:
        with self._counting:
            self.steps += steps
            self.queue_times = QueueTimes._make(map(add, self.queue_times, times))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Give no agent an action within, and stop the clocks. Steps that have begun go on."""
        with self._taking.urgently(), self._pool.sending:
            began = perf_counter()
            try:
                yield
            finally:
                self._resumed_at = perf_counter()
                self._paused_seconds += self._resumed_at - began

    def _clock(self) -> float:
        """Return seconds without pauses."""
        return perf_counter() - self._paused_seconds

    @property
    def times(self) -> SamplerTimes:
        """Sums over predictors; ``simulating`` is the mean over the agents that run."""
        times = self.queue_times
        simulating = self.busy_seconds / max(1, self.num_agents)
        return SamplerTimes(times.predictor_waiting, times.predictor_busy, simulating)

    @property
    def busy_seconds(self) -> float:
        """Time that all agents that ever ran have spent in their simulators."""
        return self._pool.busy_seconds

    def close(self) -> None:
        """End the agents; trainers can still take what is in the queue.

        A second call, or a call in a fork, does nothing.
        """
        if self._pool.is_inherited:  # where locks may be held by threads that are not there
            return
        self.is_running = False
        self.training_queue.close()
        with self._taking.urgently():
            self._pool.close()


def check_queued(
    config: SamplerConfig,
    gamma: float,
    max_agents: int,
    max_prediction_batch: int,
    training_queue_size: int,
) -> None:
    """Check the arguments of a `QueuedSampler`."""
    G = config.num_groups
    for name, *allowed in (
        ("reset_policy", "immediate"),
        ("num_workers", None, G),
        ("affinity", "auto", "off"),
    ):
        if (value := getattr(config, name)) not in allowed:
            raise ValueError(
                f"{name} is {format_value(value)}; with GA3C, whose agents never wait and are a "
                f"worker and a group each, it must be {' or '.join(map(format_value, allowed))}"
            )
    check_kind(float, gamma=gamma)
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma is {gamma}; it must be in 0 .. 1")
    for name, number, least, what in (
        ("max_agents", max_agents, G, f"num_groups={G}"),
        ("max_prediction_batch", max_prediction_batch, 1, "1"),
        ("training_queue_size", training_queue_size, 1, "1"),
    ):
        check_kind(int, **{name: number})
        if number < least:
            raise ValueError(f"{name} is {number}; it must be at least {what}")


def _check_values(values: Any, num_observations: int, name: str = "values") -> NDArray[np.float32]:
    """Return ``values``, called ``name`` in messages, as an array."""
    given: NDArray[np.float32] = np.asarray(values, np.float32)
    if given.shape != (num_observations,):
        raise ValueError(
            f"got {name} of shape {given.shape} for {num_observations} observations; there must be "
            f"one for each, shape ({num_observations},)"
        )
    if not np.isfinite(given).all():
        raise ValueError(f"got {name} that are not finite; what is learned is made of them")
    return given
