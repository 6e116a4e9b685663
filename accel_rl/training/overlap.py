"""Sampling and learning at the same time: while the learner works on one rollout, the next is made.

The policy that acts has a network of its own, whose parameters are taken over from the learner
between two rollouts, when no update is being made. So a rollout is learned from with parameters
that are one iteration newer than those that acted in it, always, and a run can be repeated, on
the CPU to the bit. Only the first rollout, and each that comes after a checkpoint, is not behind.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from accel_rl.agents import EpsilonGreedyAgent
from accel_rl.algos import AnyAgent
from accel_rl.parallel import Exchange, FlatParameters
from accel_rl.training.protocols import Learner
from accel_rl.training.torch_setup import num_learning_threads

LAG = "policy_lag"
"""metric: updates between the parameters that acted and those that learning begins with"""

Metrics = Mapping[str, Tensor]


class Overlap:
    """A second ``agent`` to act with, and a thread in which the first one's learner works.

    ``agent``: that one. It has the parameters of the last `take_over`. On a GPU the thread has a
    stream of its own, which waits for what was enqueued on the current one before `begin`; and the
    current one waits for it when the result is asked for. ``is_small``: of `has_small_updates`.
    """

    def __init__(
        self,
        agent: AnyAgent,
        learner: Learner,
        exchange: Exchange,
        device: torch.device,
        *,
        is_small: bool = False,
    ) -> None:
        self.agent = copy.deepcopy(agent)
        self._acting = FlatParameters(self.agent.model)
        self._learning_agent = agent
        self._behaviour = learner.behaviour
        if self._behaviour is not None:
            # Kept, since on a GPU the learner's stream may read it after its last use here.
            self._acted = torch.empty_like(self._acting.parameter)
        self._exchange = exchange
        self._device = device
        self._stream = _make_stream(device)
        self._version = self._lag = 0
        self._thread = ThreadPoolExecutor(1, "learner", _prepare_thread, (device, is_small))

    def take_over(self, num_rows: int = 0) -> None:
        """Act with the learner's parameters from now on, while it makes no update.

        ``num_rows``: of the rollout that is learned from next, if that has been collected already.
        """
        if num_rows and self._behaviour is not None:
            self._acted.copy_(self._acting.parameter)
            self._behaviour.note(num_rows, self._acted)
        num_updates = self._exchange.num_updates
        self._lag = num_updates - self._version if num_rows else 0
        self._version = num_updates
        self._acting.parameter.copy_(self._exchange.parameters.parameter)
        if isinstance(self.agent, EpsilonGreedyAgent):
            assert isinstance(self._learning_agent, EpsilonGreedyAgent)
            self.agent.epsilon = self._learning_agent.epsilon

    def begin(self, update: Callable[[], Metrics]) -> Callable[[], Metrics]:
        """Have ``update`` made. What this returns waits for it, and gives its metrics and the lag.

        What ``update`` uses must be kept until then.
        """
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        future = self._thread.submit(self._learn, update)

        def result() -> Metrics:
            metrics = future.result()
            if self._stream is not None:
                torch.cuda.current_stream(self._device).wait_stream(self._stream)
            if not metrics:
                return metrics
            return {**metrics, LAG: torch.full((), float(self._lag), device=self._device)}

        return result

    def close(self) -> None:
        """Ends the thread, after the update that it makes. Calling it again does nothing."""
        self._thread.shutdown()

    def _learn(self, update: Callable[[], Metrics]) -> Metrics:
        if self._stream is None:  # torch.cuda.stream(None) would wake a GPU that is not used
            return update()
        with torch.cuda.stream(self._stream):
            return update()


def _prepare_thread(device: torch.device, is_small: bool) -> None:
    torch.set_num_threads(num_learning_threads(overlaps=True, is_small=is_small))
    if device.type == "cuda" and device.index is not None:  # else it is the first GPU
        # Each thread has a current device of its own; on leaving a stream torch makes the first GPU
        # current again, and so a context on it, unless it is told.
        torch.cuda.set_device(device)


def _make_stream(device: torch.device) -> torch.cuda.Stream | None:
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
