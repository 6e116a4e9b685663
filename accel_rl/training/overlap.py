"""Sampling and learning at the same time: while the learner works on one rollout, the next is made.

The policy that acts has its own network, which takes over the learner's parameters between two
rollouts, while no update is made. The parameters that learn from a rollout are therefore always one
iteration newer than those that acted in it, and a run can be repeated, on the CPU to the bit. Only
the first rollout, and each rollout after a checkpoint, is not behind.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import torch
from torch import Tensor

from accel_rl.agents import Agent, RolloutTensors
from accel_rl.algos import Learner
from accel_rl.parallel import FlatParameters, GradientSync
from accel_rl.samplers import ActionServer
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.training.torch_setup import num_learning_threads

LAG = "policy_lag"
"""metric: updates between the parameters that acted and those that learning begins with"""

_ACTING_PRIORITY = -5
"""of CUDA's streams, from 0; lower is earlier, and torch takes the lowest that the GPU has"""

Metrics = Mapping[str, Tensor]


class Overlapped:
    """Takes the place of a server and a learner, which works in a thread while the next rollout is
    collected.

    A copy of ``agent`` acts, with the parameters of the last `take_over`.

    On a GPU the thread has its own stream. Acting has a stream of higher priority: its few small
    kernels go before those of the update, since simulators wait for their actions. Before an update
    the learner's stream waits for the other two streams; the current stream waits for the learner's
    when the update is done; and acting goes on after the current stream.

    Attributes:
        server: acts, and keeps its rollout until it is learned from.
    """

    is_ahead = False

    def __init__(
        self,
        sampler: RolloutSampler,
        agent: Agent,
        learner: Learner,
        sync: GradientSync,
        *,
        is_small: bool = False,
    ) -> None:
        self._device = device = sync.parameters.parameter.device
        self._sampler = sampler
        self._agent = copy.deepcopy(agent)
        self.server = ActionServer(self._agent, sampler, device, keeps_rollout=True)
        self._acting = FlatParameters(self._agent.model)
        self._learning_agent, self._learner = agent, learner
        self._sync = sync
        self._stream = self._acting_stream = None
        if device.type == "cuda":
            self._stream, self._acting_stream = (
                torch.cuda.Stream(device, priority)  # type: ignore[no-untyped-call]
                for priority in (0, _ACTING_PRIORITY)
            )
        self._version = self._lag = 0
        self._failure: Exception | None = None
        self._thread = ThreadPoolExecutor(1, "learner", _prepare_thread, (device, is_small))

    def begin(self, goes_on: Callable[[int], bool]) -> None:
        """Collect a rollout while what ``steps`` brought is learned from if ``goes_on(steps)``."""
        self._goes_on = goes_on

    def collect(self) -> None:
        """Collect a rollout with the learner's parameters, unless one is there already."""
        if self._failure is not None:
            raise self._failure
        if self.is_ahead:
            self.is_ahead = False
            with self._is_acting():
                self.take_over(is_behind=True)
        else:
            with self._is_acting():
                self.take_over()
                self._sampler.collect(self.server)

    def take_over(self, *, is_behind: bool = False) -> None:
        """Act with the learner's parameters from now on, while it makes no update.

        ``is_behind``: the rollout that is learned from next has been collected already.
        """
        num_updates = self._sync.num_updates
        self._lag = num_updates - self._version if is_behind else 0
        self._version = num_updates
        self._acting.parameter.copy_(self._sync.parameters.parameter)
        self._agent.follow(self._learning_agent)

    def finish(self) -> RolloutTensors:
        """Return what was collected, on the learner's device."""
        with self._is_acting():
            return self.server.finish()

    def update(self, batch: RolloutTensors, progress: float, steps: int) -> Metrics:
        """Learn from ``batch`` in the thread; meanwhile, if the run goes on, collect the next.

        The update counts also where the sampler fails, which `collect` then raises.
        """
        if self._stream is not None and self._acting_stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            self._stream.wait_stream(self._acting_stream)
        future = self._thread.submit(self._learn, batch, progress, steps)
        try:
            if self._goes_on(steps):
                self.is_ahead = True
                with self._is_acting():
                    self._sampler.collect(self.server)
        except Exception as error:
            self._failure = error
        finally:
            metrics = future.result()
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        if not metrics:
            return metrics
        return {**metrics, LAG: torch.full((), float(self._lag), device=self._device)}

    def close(self) -> None:
        """End the thread, after its update; simulators that are ahead end as well.

        They are not to be saved like that. Calling it again does nothing.
        """
        self._thread.shutdown()
        if self._acting_stream is not None:  # the server waits for the current one
            with suppress(RuntimeError):  # the device has failed, which has been told
                torch.cuda.current_stream(self._device).wait_stream(self._acting_stream)
        if self.is_ahead:
            self._sampler.close()

    @contextmanager
    def _is_acting(self) -> Iterator[None]:
        if self._acting_stream is not None:
            self._acting_stream.wait_stream(torch.cuda.current_stream(self._device))
        with _on(self._acting_stream):
            yield

    def _learn(self, batch: RolloutTensors, progress: float, steps: int) -> Metrics:
        with _on(self._stream):
            return self._learner.update(batch, progress, steps)


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[None]:
    """Enqueue on ``stream`` within; torch.cuda.stream(None) would wake a GPU that is not used."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def _prepare_thread(device: torch.device, is_small: bool) -> None:
    torch.set_flush_denormal(True)  # as `learning_threads` does
    torch.set_num_threads(num_learning_threads(overlaps=True, is_small=is_small))
    if device.type == "cuda" and device.index is not None:  # else it is the first GPU
        # Each thread has a current device of its own; on leaving a stream torch makes the first GPU
        # current again, and so a context on it, unless it is told.
        torch.cuda.set_device(device)
