"""Adam that takes several steps of its own between two visits of the parameter store.

Stooke and Abbeel 2018, arXiv:1803.02811, appendix B. Every step is one of Adam on the learner's own
parameters and moments, and adds to three sums, with ``g`` the clipped gradient:

    sum_step    <- sum_step + step
    sum_g       <- beta1 * sum_g + g
    sum_square  <- beta2 * sum_square + g ** 2

After ``n`` steps the store and the learner are given, chunk by chunk,

    parameters   <- the store's + sum_step
    mean         <- beta1 ** n * the store's + (1 - beta1) * sum_g
    mean_square  <- beta2 ** n * the store's + (1 - beta2) * sum_square

and the sums start from 0. With one learner this is Adam for every ``n``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from accel_rl.parallel.flat import FlatParameters
from accel_rl.parallel.gradient_sync import State, clip_gradient_
from accel_rl.parallel.rules import Adam
from accel_rl.parallel.store import Chunk, ParameterStore
from accel_rl.parallel.store_sync import Block, StoreSync


class MultiStepAdam(StoreSync):
    """A `StoreSync` that visits the store once in ``sync_period`` steps.

    Steps that are left when a batch ends are carried on: they go into the store with the next
    visit, which is the ``sync_period``-th step or an earlier `pull` or `state_dict`, and ``n`` is
    the number of steps that were taken. So a learner calls `pull` when it ends.

    Bias is corrected by the store's step count of the chunk, as last read, plus the learner's own
    steps since; a visit adds ``n`` to it. All three arrays of a chunk change under its one lock,
    so that they are of the same moment; theirs had a lock for each array, and were not.

    Raises:
        ValueError: ``sync_period`` is below 1.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        store: ParameterStore,
        rule: Adam,
        max_gradient_norm: float | None,
        sync_period: int,
    ) -> None:
        if sync_period < 1:
            raise ValueError(f"sync_period is {sync_period}; it must be at least 1")
        flat = parameters.parameter
        # Rows as in a slot: the parameters at the last visit, the moments now.
        self._local = flat.new_zeros(3, len(flat))
        super().__init__(
            parameters,
            store,
            rule,
            max_gradient_norm,
            adopted=self._local,
        )
        self._sync_period = sync_period
        self._adam = rule
        self._sums = flat.new_zeros(3, len(flat))
        self._num_unsynced = 0
        self.pull()

    def apply(self, rate: float | Tensor) -> Tensor:
        """Take a step of Adam, and visit the store in each ``sync_period``-th call."""
        gradient = self.parameters.gradient
        norm = clip_gradient_(gradient, self._max_norm)
        self._num_unsynced += 1
        for chunk in self._store.chunks:
            sum_step = self._sums[0, chunk.elements]
            _, mean, mean_square = self._local[:, chunk.elements]
            state = {"mean": mean, "mean_square": mean_square}
            own = self._adam.rate(self._lr, self._seen[chunk.index] + self._num_unsynced)
            # The step does not depend on what it is added to.
            self._adam.step_(sum_step, gradient[chunk.elements], state, own)
        sum_step, sum_g, sum_square = self._sums
        torch.add(self._local[0], sum_step, out=self.parameters.parameter)
        torch.add(gradient, sum_g, alpha=self._adam.beta1, out=sum_g)
        sum_square.mul_(self._adam.beta2).addcmul_(gradient, gradient)
        if self._num_unsynced == self._sync_period:
            self._synchronize()
        return norm

    def pull(self) -> None:
        """Push steps that the store has not seen, then take its parameters."""
        if self._num_unsynced:
            self._synchronize()
        else:
            super().pull()
            self.parameters.parameter.copy_(self._local[0])

    def state_dict(self) -> State:
        """Call `pull`, then return `StoreSync.state_dict`."""
        self.pull()
        return super().state_dict()

    def load_state_dict(self, state: State) -> None:
        """Drop steps that the store has not seen; see `StoreSync.load_state_dict`."""
        self._forget_steps()
        super().load_state_dict(state)

    def _synchronize(self) -> None:
        beta1, beta2, n = self._adam.beta1, self._adam.beta2, self._num_unsynced

        def change(chunk: Chunk, num_updates: int, block: Block) -> None:
            sum_step, sum_g, sum_square = self._sums[:, chunk.elements]
            block.parameters.add_(sum_step)
            block.state["mean"].mul_(beta1**n).add_(sum_g, alpha=1 - beta1)
            block.state["mean_square"].mul_(beta2**n).add_(sum_square, alpha=1 - beta2)

        self._push(n, change)
        self.parameters.parameter.copy_(self._local[0])
        self._forget_steps()

    def _forget_steps(self) -> None:
        self._num_unsynced = 0
        self._sums.zero_()
