"""GA3C's predictors and trainers: threads that serve agents and learn from their steps.

The numbers of both can change while they run. A surplus thread ends after its present batch, and no
thread waits for that.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.agents import PolicyAgent
from accel_rl.ga3c.learner import GA3C, Samples
from accel_rl.ga3c.predictor import Places, Predictor, Put, padded_size, to_device
from accel_rl.ga3c.queue import QueueClosed
from accel_rl.ga3c.sampler import QueuedSampler
from accel_rl.ga3c.segments import Segment
from accel_rl.ga3c.versions import Versions, VersionSync
from accel_rl.graphs import Graphs
from accel_rl.parallel import FlatParameters

_JOIN_SECONDS = 60.0
_FINISH_SECONDS = 300.0  # for updates with all that is in the training queue
_TAKE_SECONDS = 1.0  # that a trainer waits for samples before it looks whether it is to stop


@dataclass
class Trainings:
    """Sums over all updates of trainers since the start.

    ``lags`` counts the batches whose oldest sample had each policy lag, in updates.
    """

    count: int = 0
    samples: int = 0
    seconds: float = 0.0
    queued: int = 0
    lags: Counter[int] = field(default_factory=Counter)
    metrics: list[dict[str, Tensor]] = field(default_factory=list)


class QueueThreads:
    """Predictors and trainers of ``agent``'s model, none of them started yet.

    Each has a network of its own over the parameters of ``versions``. Trainers begin with the state
    of ``learner``. ``progress`` returns how far schedules have run. ``woken`` is set when a thread
    has failed.
    """

    def __init__(
        self,
        agent: PolicyAgent,
        learner: GA3C,
        versions: Versions,
        sampler: QueuedSampler,
        device: torch.device,
        graphs: Graphs | None = None,
    ) -> None:
        self._agent = agent
        self._learner = learner
        self._versions = versions
        self._sampler = sampler
        self._device = device
        self.graphs = graphs
        # The model's GPU; a new thread would begin with the first one.
        self._gpu = torch.cuda.current_device() if device.type == "cuda" else None
        self.trainings = Trainings()
        self.progress: Callable[[], float] = lambda: 0.0
        self._stops: dict[str, list[threading.Event]] = {"predictor": [], "trainer": []}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()  # of trainings and error
        self._counting = threading.Lock()  # of _stops and _threads
        self._making = threading.Lock()
        self._error: BaseException | None = None
        self.woken = threading.Event()

    @property
    def num_predictors(self) -> int:
        return len(self._stops["predictor"])

    @property
    def num_trainers(self) -> int:
        return len(self._stops["trainer"])

    def set_counts(self, num_predictors: int, num_trainers: int) -> None:
        """Set the numbers of threads; no thread runs once one has failed."""
        with self._counting:
            if self._error is not None:
                num_predictors = num_trainers = 0
            self._set_count("predictor", self._predict, num_predictors)
            self._set_count("trainer", self._train, num_trainers)

    def _set_count(self, kind: str, loop: Callable[[threading.Event], None], number: int) -> None:
        stops = self._stops[kind]
        while len(stops) > number:
            stops.pop().set()
        while len(stops) < number:
            stop = threading.Event()
            name = f"{kind} {len(self._threads)}"
            thread = threading.Thread(target=self._run, args=(loop, stop), name=name, daemon=True)
            thread.start()  # the system may refuse, and `close` waits for those that it has started
            stops.append(stop)
            self._threads.append(thread)

    def check(self) -> None:
        """Raise the error of a thread that has failed."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Stop predictors, and wait until trainers have learned from all that agents have done."""
        with self._counting:  # still counted, for the last row of metrics
            for stop in self._stops["predictor"]:
                stop.set()
        self._join("predictor", _FINISH_SECONDS)
        self._sampler.training_queue.close()
        self._join("trainer", _FINISH_SECONDS)

    def read_trainings(self) -> Trainings:
        """Return a copy of ``trainings`` at one moment, without their metrics."""
        with self._lock:
            return replace(self.trainings, lags=self.trainings.lags.copy(), metrics=[])

    def take_metrics(self) -> list[dict[str, Tensor]]:
        """Return the learner's metrics of the updates since the last call."""
        with self._lock:
            metrics, self.trainings.metrics = self.trainings.metrics, []
        return metrics

    def close(self) -> None:
        """End all threads. Calling it again does nothing."""
        self._stop()
        for kind in self._stops:
            self._join(kind, _JOIN_SECONDS)

    def _stop(self) -> None:
        self.set_counts(0, 0)
        self._sampler.training_queue.close()  # wakes threads that wait there

    def _join(self, kind: str, seconds: float) -> None:
        deadline = monotonic() + seconds
        for thread in self._threads:
            if thread.name.startswith(kind):
                thread.join(max(0.0, deadline - monotonic()))
                if thread.is_alive():
                    raise TimeoutError(f"{thread.name} has not ended within {seconds:g} s")

    def _run(self, loop: Callable[[threading.Event], None], stop: threading.Event) -> None:
        torch.set_num_threads(1)
        try:
            if self._gpu is not None:
                torch.cuda.set_device(self._gpu)
            loop(stop)
        except QueueClosed:
            pass
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            self._stop()
            self.woken.set()

    def _make_network(self) -> tuple[PolicyAgent, VersionSync]:
        with self._making:
            model: Any = copy.deepcopy(self._agent.model)
            flat, copies = FlatParameters(model), self.graphs is not None
            return type(self._agent)(model), VersionSync(flat, self._versions, copies=copies)

    def _predict(self, stop: threading.Event) -> None:
        agent, sync = self._make_network()
        told, most = self._learner.config.vtrace, self._sampler.most_predicted
        policy = Predictor(agent, sync, self._device, told, self.graphs, most)
        with closing(sync):
            while not stop.is_set():
                self._sampler.serve(policy)

    def _train(self, stop: threading.Event) -> None:
        torch.set_flush_denormal(True)  # of this thread, as `learning_threads` does
        agent, sync = self._make_network()
        learner = GA3C(agent, self._learner.config, sync, self.graphs)
        learner.set_state(self._learner.get_state())
        queue, least = self._sampler.training_queue, learner.config.min_training_batch
        put: Put = partial(to_device, self._device)
        if self.graphs is not None:
            put = Places(least + self._sampler.config.horizon - 1, self._device).put
        with closing(sync):
            while not stop.is_set():
                try:
                    segments = queue.take(least, _TAKE_SECONDS)
                except TimeoutError:
                    continue
                num_queued = len(queue)
                began = perf_counter()
                sync.pull()
                metrics = learner.update(self._batch(segments, put), self.progress())
                lag = sync.made - 1 - min(int(segment.version[0]) for segment in segments)
                with self._lock:
                    done = self.trainings
                    done.count += 1
                    done.samples += sum(map(len, segments))
                    done.seconds += perf_counter() - began
                    done.queued += num_queued
                    done.lags[lag] += 1
                    done.metrics.append(metrics)

    def _batch(self, segments: list[Segment], put: Put) -> Samples:
        """Return the samples of ``segments``, one after the other, where ``put`` brings them."""
        names = ["observation", "action", "return_"]
        is_corrected = self._learner.config.vtrace
        if is_corrected:
            names.append("behaviour_probability")
        fields: dict[str, Any] = {
            name: np.concatenate([getattr(segment, name) for segment in segments]) for name in names
        }
        if is_corrected:
            fields["discount"] = np.full_like(fields["return_"], self._learner.config.gamma)
            fields["discount"][np.cumsum([len(segment) for segment in segments]) - 1] = 0
        if self.graphs is not None:
            num = len(fields["return_"])
            fields["weight"] = np.zeros(padded_size(num), np.float32)
            fields["weight"][:num] = 1
        placed: dict[str, Any] = put(fields)
        return Samples(**placed, longest=self._sampler.config.horizon)
