"""Learners that share a parameter store and do not wait for each other.

The gradient is computed and clipped outside any lock. Then chunk by chunk, in whatever order the
locks come free: the rule is applied, on the learner's device, to the store's parameters and
optimizer state, the results overwrite them, and the learner's own copy becomes the same. Chunks may
be from different moments. (Mnih et al. 2016, arXiv:1602.01783, with the statistics shared; in
chunks and with a GPU as in Stooke and Abbeel 2018, arXiv:1803.02811, section 3.3.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.parallel.flat import FlatParameters
from accel_rl.parallel.gradient_sync import GradientSync, State, check_kinds, clip_gradient_
from accel_rl.parallel.rules import ParameterRule, UpdateRule
from accel_rl.parallel.running import Running
from accel_rl.parallel.store import Chunk, ParameterStore

LEARNER_UPDATES = "learner_updates"


class Block(NamedTuple):
    """A chunk that is changed on the learner's device: a slot itself, or a copy on the GPU."""

    whole: Tensor  # [K, n], of which the others are views
    parameters: Tensor  # [n]
    state: dict[str, Tensor]  # [n] each

    @classmethod
    def of(cls, whole: Tensor, names: Iterable[str]) -> Block:
        parameters, *state = whole
        return cls(whole, parameters, dict(zip(names, state, strict=True)))


def create_store(
    parameters: FlatParameters, rule: UpdateRule, num_chunks: int = 3, timeout_seconds: float = 60.0
) -> ParameterStore:
    """Return a new store of a network's parameters and a rule's state at the start.

    Args:
        parameters: parameters of the network.
        rule: the update rule.
        num_chunks: number of chunks.
        timeout_seconds: longest wait for a lock.

    Raises:
        ValueError: ``num_chunks`` is below 1, the rule is a `ParameterRule`, or this is not Linux.
    """
    if isinstance(rule, ParameterRule):
        raise ValueError(
            f"the update rule {type(rule).__name__} sees whole parameters, and sync=store changes "
            f"slices of them; use sync=all_reduce"
        )
    flats = {"parameters": parameters.parameter, **rule.make_state(parameters.parameter)}
    return ParameterStore.create(flats, _about(parameters, rule), num_chunks, timeout_seconds)


def open_store(
    address: Mapping[str, Any],
    parameters: FlatParameters,
    rule: UpdateRule,
    timeout_seconds: float = 60.0,
) -> ParameterStore:
    """Return a store that another process created by `create_store`.

    Args:
        address: address of the store.
        parameters: parameters of the same network. Their values do not matter.
        rule: the same update rule.
        timeout_seconds: longest wait for a lock.

    Raises:
        ValueError: there is no store, or it is of something else; the message says of what.
    """
    return ParameterStore.open(address, _about(parameters, rule), timeout_seconds)


def _about(parameters: FlatParameters, rule: UpdateRule) -> dict[str, str]:
    """Return facts that all learners must agree on."""
    dtype = str(parameters.parameter.dtype).removeprefix("torch.")
    return {"parameters": repr(parameters.layout), "dtype": dtype, "rule": repr(rule)}


class StoreSync(GradientSync):
    """The synchronization of asynchronous learners, by gradients pushed into a parameter store.

    It starts with the store's parameters. Threads may share a store, and each needs a `StoreSync`
    and parameters of its own. Adam corrects its bias by the store's count of steps of each chunk.

    Every method but `take_metrics` raises TimeoutError if no lock comes free in time. The run
    cannot continue then, since some chunks may have been updated already.

    Args:
        parameters: parameters and gradients of the learner's network.
        store: the store.
        rule: the update rule of the store.
        max_gradient_norm: largest L2 norm of this learner's gradient; see `Local`. None: no limit.
        adopted: memory of a subclass, ``[K, P]`` on the learner's device, that takes over all
            arrays of the store instead of ``parameters``.

    Attributes:
        num_updates: updates by this learner.
        running: see `GradientSync.running`; numbers of this learner alone until it is set.
    """

    num_updates: int = 0
    running: Callable[[str, Tensor], Running]

    def __init__(
        self,
        parameters: FlatParameters,
        store: ParameterStore,
        rule: UpdateRule,
        max_gradient_norm: float | None,
        *,
        adopted: Tensor | None = None,
    ) -> None:
        self.parameters = parameters
        self._store = store
        self._rule = rule
        self._max_norm = max_gradient_norm
        self._seen = [0] * len(store.chunks)  # updates of each chunk when last read or written
        self._device = parameters.parameter.device
        self._is_on_gpu = self._device.type == "cuda"
        if self._is_on_gpu:
            store.pin(self._device)
        # Views, made once: of the learner's vectors by chunk, of blocks by chunk and slot.
        self._gradients = [parameters.gradient[chunk.elements] for chunk in store.chunks]
        self._blocks = [self._make_blocks(chunk) for chunk in store.chunks]
        mine = parameters.parameter[None] if adopted is None else adopted
        self._adopted = [mine[:, chunk.elements] for chunk in store.chunks]
        self._measured = _Measured()
        self._lr = math.nan
        self._take_over()

    def advance(self, lr: float) -> float:
        """Count one update by this learner, and return the learning rate."""
        self.num_updates += 1
        self._lr = lr
        return lr

    def apply(self, rate: float | Tensor) -> Tensor:
        """Push the gradient into the store, and take its parameters; see `GradientSync.apply`."""
        norm = clip_gradient_(self.parameters.gradient, self._max_norm)

        def change(chunk: Chunk, num_updates: int, block: Block) -> None:
            own = self._rule.rate(self._lr, num_updates + 1)  # by the updates of the chunk
            self._rule.step_(block.parameters, self._gradients[chunk.index], block.state, own)

        self._push(1, change)
        return norm

    def pull(self) -> None:
        """Take the store's newest parameters."""
        self._take_over()

    def take_metrics(self) -> dict[str, float]:
        """Return metrics since the last call.

        ``learning_rate`` is the rate of the last update.
        ``push_lag_min``, ``push_lag_mean`` and ``push_lag_max`` are numbers of updates by others
        between this learner's last read of a chunk and its push, NaN without a push.
        ``lock_wait_seconds`` is the time spent waiting for locks, and ``push_seconds`` the time of
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
            state: state of this class or of another one, for example `Local`.

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
        """Return the blocks in which to change the chunk for slot 0 and for slot 1."""
        names = self._store.arrays[1:]
        if self._device.type != "cuda":
            first, second = (Block.of(slot, names) for slot in chunk.slots)
            return first, second
        staging = Block.of(torch.empty_like(chunk.slots[0], device=self._device), names)
        return staging, staging

    def _take_over(self) -> None:
        self._wait_for_device()
        for chunk, waited in self._store.visit():
            self._measured.lock_wait_seconds += waited
            valid, self._seen[chunk.index] = chunk.look()
            mine = self._adopted[chunk.index]
            mine.copy_(chunk.slots[valid][: len(mine)], non_blocking=True)
            self._wait_for_device()

    def _push(self, num_updates: int, change: Callable[[Chunk, int, Block], None]) -> None:
        """Change each chunk under its lock, and make the learner's copy the same.

        Args:
            num_updates: number of steps of the rule that ``change`` makes.
            change: called with a chunk, its number of updates, and the block to change.
        """
        began, measured, lags = time.perf_counter(), self._measured, []
        if self._is_on_gpu:  # else the backward pass would be waited for under the first lock
            self._wait_for_device()
        for chunk, waited in self._store.visit():
            valid, before = chunk.look()
            block, mine = self._blocks[chunk.index][1 - valid], self._adopted[chunk.index]
            block.whole.copy_(chunk.slots[valid], non_blocking=True)
            change(chunk, before, block)
            mine.copy_(block.whole[: len(mine)])
            if self._is_on_gpu:
                chunk.slots[1 - valid].copy_(block.whole, non_blocking=True)
                self._wait_for_device()
            chunk.flip(before + num_updates)
            measured.lock_wait_seconds += waited
            lags.append(before - self._seen[chunk.index])
            self._seen[chunk.index] = before + num_updates
        measured.num_lags += len(lags)
        measured.lag_total += sum(lags)
        measured.lag_min = min(*lags, measured.lag_min)  # nan is neither smaller nor larger
        measured.lag_max = max(*lags, measured.lag_max)
        measured.push_seconds += time.perf_counter() - began

    def _wait_for_device(self) -> None:
        if self._is_on_gpu:
            torch.cuda.current_stream(self._device).synchronize()


@dataclass
class _Measured:
    """Sums since metrics were last taken; each chunk has a lag, in updates."""

    num_lags: int = 0
    lag_total: int = 0
    lag_min: float = math.nan
    lag_max: float = math.nan
    lock_wait_seconds: float = 0.0
    push_seconds: float = 0.0
