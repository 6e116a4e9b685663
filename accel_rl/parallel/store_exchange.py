"""The exchange of a learner that shares a parameter store with others, without waiting for them.

The gradient is computed and clipped outside any lock. Then chunk by chunk, in whatever order the
locks come free: the rule is applied, on the learner's device, to the store's parameters and
optimizer state, the results overwrite them, and the learner's own copy becomes the same. Chunks may
be from different moments. (Mnih et al. 2016, arXiv:1602.01783, with the statistics shared; in
chunks and with a GPU as in Stooke and Abbeel 2018, arXiv:1803.02811, section 3.3.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from accel_rl.parallel.exchange import LASAGNE_EPS, Exchange, State, check_kinds, clip_gradient_
from accel_rl.parallel.flat import FlatParameters
from accel_rl.parallel.rules import Rule
from accel_rl.parallel.running import Running
from accel_rl.parallel.store import Chunk, ParameterStore

LEARNER_UPDATES = "learner_updates"


class Block(NamedTuple):
    """Where a chunk is changed, on the learner's device: a slot itself, or a copy on the GPU."""

    whole: Tensor  # [K, n], of which the others are views
    parameters: Tensor  # [n]
    state: dict[str, Tensor]  # [n] each

    @classmethod
    def of(cls, whole: Tensor, names: Iterable[str]) -> Block:
        parameters, *state = whole
        return cls(whole, parameters, dict(zip(names, state, strict=True)))


class StoreExchange(Exchange):
    """The exchange of asynchronous learners, which push their gradients into a parameter store.

    It starts with the store's parameters. Threads may share a store, and each needs an exchange and
    parameters of its own. Adam corrects its bias by the store's count of steps of each chunk.

    Every method but `take_metrics` raises TimeoutError if no lock comes free in time. The run
    cannot continue then, since some chunks may have been updated already.

    Args:
        parameters: parameters and gradients of the learner's network.
        store: the store.
        rule: the update rule of the store.
        max_gradient_norm: largest L2 norm of this learner's gradient; see `Local`. None: no limit.
        gradient_norm_eps: see `Local`.

    Attributes:
        num_updates: updates by this learner.
        running: see `Exchange.running`; numbers of this learner alone until it is set.
    """

    num_updates: int = 0
    running: Callable[[str, Tensor], Running]

    def __init__(
        self,
        parameters: FlatParameters,
        store: ParameterStore,
        rule: Rule,
        max_gradient_norm: float | None,
        *,
        gradient_norm_eps: float = LASAGNE_EPS,
    ) -> None:
        self.parameters = parameters
        self._store = store
        self._rule = rule
        self._clipping = max_gradient_norm, gradient_norm_eps
        self._seen = [0] * len(store.chunks)  # updates of each chunk when last read or written
        self._device = parameters.parameter.device
        self._streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None
        if self._device.type == "cuda":
            store.pin(self._device)
            # From the store and to it.
            self._streams = torch.cuda.Stream(self._device), torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        # Views, made once: of the learner's vectors by chunk, of blocks by chunk and slot.
        self._parameters = [parameters.parameter[chunk.elements] for chunk in store.chunks]
        self._gradients = [parameters.gradient[chunk.elements] for chunk in store.chunks]
        self._blocks = [self._make_blocks(chunk) for chunk in store.chunks]
        self._measured = _Measured()
        self._lr = math.nan
        self.pull()

    def step(self, lr: float, weight: Tensor | None = None) -> Tensor:
        """Push the gradient into the store, and take its parameters; see `Exchange.step`."""
        norm = clip_gradient_(self.parameters.gradient, *self._clipping)
        self.num_updates += 1
        self._lr = lr
        for chunk, block in self._pushes(num_updates=1):
            gradient, rate = (
                self._gradients[chunk.index],
                self._rule.rate(lr, chunk.num_updates + 1),
            )
            self._rule.step_(block.parameters, gradient, block.state, rate)
        return norm

    def pull(self) -> None:
        """Take the store's newest parameters."""
        for chunk in self._visit():
            self._adopt(chunk, chunk.slots[chunk.valid])
            self._wait_for_device()
            self._seen[chunk.index] = chunk.num_updates

    def take_metrics(self) -> dict[str, float]:
        """Return metrics since the last call.

        ``learning_rate`` is that of the last update.
        ``push_lag_min``, ``push_lag_mean`` and ``push_lag_max`` are numbers of updates by others
        between this learner's last read of a chunk and its push, NaN without a push.
        ``lock_wait_seconds`` is the time spent waiting for locks, and ``push_seconds`` that of
        pushes, waiting included.
        """
        measured, self._measured = self._measured, _Measured()
        lags = measured.num_lags
        return {
            "learning_rate": self._lr,
            "push_lag_min": measured.lag_min,
            "push_lag_mean": measured.lag_total / lags if lags else math.nan,
            "push_lag_max": measured.lag_max,
            "lock_wait_seconds": measured.lock_wait_seconds,
            "push_seconds": measured.push_seconds,
        }

    def state_dict(self) -> State:
        """Return the store's parameters and optimizer state, on the CPU; see `Local.state_dict`.

        ``num_updates`` counts the updates of all learners, and ``learner_updates`` those of this
        one.
        """
        flats, num_updates = self._store.read()
        named = {kind: self.parameters.to_named(flat) for kind, flat in flats.items()}
        counts = {"num_updates": num_updates, LEARNER_UPDATES: self.num_updates}
        return {**named, "counts": {name: torch.tensor(n) for name, n in counts.items()}}

    def load_state_dict(self, state: State) -> None:
        """Overwrite the store. One learner calls this before the others begin.

        Args:
            state: state of this exchange or of another one, for example `Local`.

        Raises:
            ValueError: ``state`` is of another model or rule.
        """
        check_kinds(state, self._store.arrays)
        flats, _ = self._store.read()
        for kind, flat in flats.items():
            self.parameters.from_named_(flat, state[kind])
        counts = state["counts"]
        self._store.write(flats, int(counts["num_updates"]))
        self.num_updates = int(counts.get(LEARNER_UPDATES, counts["num_updates"]))
        self.pull()

    def _make_blocks(self, chunk: Chunk) -> tuple[Block, Block]:
        """Where to change the chunk so that it comes into slot 0, and into slot 1."""
        names = self._store.arrays[1:]
        if self._device.type != "cuda":
            first, second = (Block.of(slot, names) for slot in chunk.slots)
            return first, second
        staging = Block.of(torch.empty_like(chunk.slots[0], device=self._device), names)
        return staging, staging

    def _adopt(self, chunk: Chunk, whole: Tensor) -> None:
        """Make the learner's copy of ``chunk`` that of ``whole`` ``[K, n]``."""
        self._parameters[chunk.index].copy_(whole[0], non_blocking=True)

    def _pushes(self, num_updates: int) -> Iterator[tuple[Chunk, Block]]:
        """Yield each chunk under its lock, and where to change a copy of its valid slot.

        Behind the change, of ``num_updates`` steps of the rule, that becomes the valid slot.
        """
        began = time.perf_counter()
        if self._streams is None:
            for chunk in self._visit():
                block = self._blocks[chunk.index][1 - chunk.valid]
                block.whole.copy_(chunk.slots[chunk.valid])
                yield chunk, block
                self._adopt(chunk, block.whole)
                self._flip(chunk, num_updates)
        else:
            yield from self._push_both_ways(*self._streams, num_updates)
        self._measured.push_seconds += time.perf_counter() - began

    def _push_both_ways(
        self, coming: torch.cuda.Stream, going: torch.cuda.Stream, num_updates: int
    ) -> Iterator[tuple[Chunk, Block]]:
        """`_pushes` on a GPU: a chunk comes from the store while the last one goes there."""
        here = torch.cuda.current_stream(self._device)
        last: tuple[Chunk, Callable[[], None]] | None = None
        for taken in self._visit_ahead():
            if taken is not None:
                chunk, block = taken[0], self._blocks[taken[0].index][0]
                with torch.cuda.stream(coming):
                    block.whole.copy_(chunk.slots[chunk.valid], non_blocking=True)
            if last is not None:
                going.synchronize()
                self._flip(last[0], num_updates)
                last[1]()
            last = taken
            if taken is None:
                continue
            here.wait_stream(coming)
            yield chunk, block
            going.wait_stream(here)
            with torch.cuda.stream(going):
                chunk.slots[1 - chunk.valid].copy_(block.whole, non_blocking=True)
            self._adopt(chunk, block.whole)

    def _flip(self, chunk: Chunk, num_updates: int) -> None:
        """Make valid what was written into the chunk's other slot, after so many more updates."""
        self._measured.add_lag(chunk.num_updates - self._seen[chunk.index])
        self._seen[chunk.index] = chunk.num_updates + num_updates
        chunk.flip(self._seen[chunk.index])

    def _visit_ahead(self) -> Iterator[tuple[Chunk, Callable[[], None]] | None]:
        self._wait_for_device()
        waited = yield from self._store.visit_ahead()
        self._measured.lock_wait_seconds += waited

    def _visit(self) -> Iterator[Chunk]:
        self._wait_for_device()  # else the backward pass would be waited for under the first lock
        waited = yield from self._store.visit()
        self._measured.lock_wait_seconds += waited

    def _wait_for_device(self) -> None:
        """Wait for what this learner's device was given to do."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


@dataclass
class _Measured:
    """What happened since metrics were last taken; ``lag`` in updates, one for each chunk."""

    num_lags: int = 0
    lag_total: int = 0
    lag_min: float = math.nan
    lag_max: float = math.nan
    lock_wait_seconds: float = 0.0
    push_seconds: float = 0.0

    def add_lag(self, lag: int) -> None:
        self.num_lags += 1
        self.lag_total += lag
        self.lag_min = min(lag, self.lag_min)  # of a number and nan, the first
        self.lag_max = max(lag, self.lag_max)
