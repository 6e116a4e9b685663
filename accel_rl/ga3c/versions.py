"""Parameters that threads of one process share: in versions, each written once.

Predictors and trainers of GA3C (Babaeizadeh et al. 2017, arXiv:1611.06256) work on one model at the
same time. In the code published with it an update writes into the parameters while others compute
with them. Here nobody ever computes with parameters that change:

- every thread has a network of its own, whose parameters are views of the version that it took last
  (`VersionSync.pull`), and gradients of its own;
- an update is made from the latest version and a gradient, into memory that nobody reads, and
  becomes the latest version whole. Updates wait for each other, and nobody else does.

So a gradient may be of an earlier version than the one it is applied to, as with any asynchronous
method; by how many updates is known of each.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from accel_rl.parallel.flat import FlatParameters
from accel_rl.parallel.gradient_sync import (
    GradientSync,
    State,
    clip_gradient_,
    load_state,
    make_state,
)
from accel_rl.parallel.rules import UpdateRule


class Versions:
    """The versions of ``parameter``, ``[P]``, which is the first of them and is copied.

    On a GPU all threads must use one stream, as they do unless told otherwise: what was enqueued
    by a reader before it lets a version go then runs before anything that is written there.

    The latest version's number is ``num_updates``.
    """

    def __init__(
        self,
        parameter: Tensor,
        rule: UpdateRule,
        max_gradient_norm: float | None,
    ) -> None:
        self.num_updates = 0
        self.rule_state = rule.make_state(parameter)
        self._rule = rule
        self._max_norm = max_gradient_norm
        self._slots = [parameter.clone()]
        self._num_readers = [0]
        self._latest = 0
        self.lr = math.nan  # of the last update
        self._lock = threading.Lock()  # of the four above but the contents of slots
        self._updating = threading.Lock()

    def take(self) -> tuple[int, Tensor, int]:
        """Return the latest version's slot, for `release`, its parameters, and its number."""
        with self._lock:
            self._num_readers[self._latest] += 1
            return self._latest, self._slots[self._latest], self.num_updates

    def release(self, slot: int) -> None:
        with self._lock:
            self._num_readers[slot] -= 1

    def update(self, gradient: Tensor, lr: float) -> tuple[Tensor, int]:
        """Make the next version with ``gradient``, ``[P]``, which is clipped in place.

        Return its norm before clipping, 0-d, and the number of the new version.
        """
        norm = clip_gradient_(gradient, self._max_norm)
        with self._updating:
            slot, number = self._free_slot(), self.num_updates + 1
            parameter = self._slots[slot]
            parameter.copy_(self._slots[self._latest])
            self.lr, rate = lr, self._rule.rate(lr, number)
            self._rule.step_(parameter, gradient, self.rule_state, rate)
            self._publish(slot, number)
        return norm, number

    def state_dict(self, parameters: FlatParameters) -> State:
        """Return the latest version and the optimizer's state, on the CPU."""
        with self._updating:
            flats = {"parameters": self._slots[self._latest], **self.rule_state}
            return make_state(parameters, flats, self.num_updates)

    def load_state_dict(self, parameters: FlatParameters, state: State) -> None:
        """Raise ValueError if ``state`` is of another model or rule."""
        with self._updating:
            slot = self._free_slot()
            flats = {"parameters": self._slots[slot], **self.rule_state}
            self._publish(slot, load_state(parameters, flats, state))

    def _free_slot(self) -> int:
        with self._lock:
            for slot, num_readers in enumerate(self._num_readers):
                if num_readers == 0 and slot != self._latest:
                    return slot
            self._slots.append(torch.zeros_like(self._slots[0]))
            self._num_readers.append(0)
            return len(self._slots) - 1

    def _publish(self, slot: int, number: int) -> None:
        with self._lock:
            self._latest, self.num_updates = slot, number


class VersionSync(GradientSync):
    """One thread's view of `Versions`, for its learner or for acting.

    Attributes:
        parameters: of the thread's own network, views of a version, or with ``copies`` copies of
            it, as CUDA graphs need them.
        version: the number of that version.
        made: the number of the last version that this made.
        take_metrics: returns metrics; none unless it is set.
    """

    take_metrics: Callable[[], dict[str, float]]

    def __init__(
        self, parameters: FlatParameters, versions: Versions, *, copies: bool = False
    ) -> None:
        self.parameters = parameters
        self._copies = copies
        self._slot: int | None = None
        self.versions = versions
        self.made = 0
        self._take_over()

    @property
    def num_updates(self) -> int:
        """Number of updates by all threads."""
        return self.versions.num_updates

    def pull(self) -> None:
        """Take the latest version over. Not between a forward pass and its backward pass."""
        if self.version != self.versions.num_updates:
            self.close()
            self._take_over()

    def apply(self, rate: float | Tensor) -> Tensor:
        """Make a version, and take the latest over; see `GradientSync.apply`."""
        norm, self.made = self.versions.update(self.parameters.gradient, float(rate))
        self.pull()
        return norm

    def state_dict(self) -> State:
        return self.versions.state_dict(self.parameters)

    def load_state_dict(self, state: State) -> None:
        self.versions.load_state_dict(self.parameters, state)
        self.close()
        self._take_over()

    def close(self) -> None:
        """Let go of the version; the network must not be used any more."""
        if self._slot is not None:
            self.versions.release(self._slot)
            self._slot = None

    def _take_over(self) -> None:
        self._slot, flat, self.version = self.versions.take()
        if self._copies:
            self.parameters.parameter.copy_(flat)
            self.close()
        else:
            self.parameters.attach(flat)
