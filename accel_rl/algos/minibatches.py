"""Learning from a rollout in epochs of shuffled minibatches: settings, and the minibatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from accel_rl.agents import RolloutTensors
from accel_rl.algos.learner import LearnerConfig, restore
from accel_rl.algos.optimizer import Turns, masked_mean, take_turn
from accel_rl.algos.replay.memory import send
from accel_rl.algos.specs import Batch
from accel_rl.graphs import Fixed
from accel_rl.options import require
from accel_rl.spaces import map_leaves

_MOST_BYTES_AT_ONCE = 1 << 20  # of a rollout whose minibatches are gathered at once for an epoch


@dataclass(frozen=True, kw_only=True)
class MinibatchConfig(LearnerConfig):
    """Settings of algorithms that make several updates of each rollout."""

    cheaper: ClassVar[str] = "fewer epochs or a larger minibatch_size"

    epochs: int
    """Passes over each rollout."""
    minibatch_size: int
    """Steps in one update. It must divide num_envs * horizon."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "at least 1", lambda value: value >= 1, "epochs", "minibatch_size")

    def check_run(self, run: Any) -> None:
        """Check that minibatches divide the rollouts; see `check_rollout`."""
        num_sequences = 0
        if run.memory is not None:
            num_sequences = run.num_learners if run.parallel.sync == "all_reduce" else 1
        self.check_rollout(run.sampler.num_envs, run.sampler.horizon, num_sequences)

    def batches(self, sampler: Any) -> dict[str, Batch]:
        """Return the batches that learners in step must be able to divide: minibatches."""
        return {"minibatch_size": Batch(self.minibatch_size, sampler.num_envs * sampler.horizon)}

    def check_rollout(self, num_envs: int, horizon: int, num_sequences: int = 0) -> None:
        """Check that minibatches divide the rollout.

        Args:
            num_sequences: Number of environments of which a minibatch must hold a multiple, with
                all their steps, since a recurrent network learns from whole sequences: one for
                each learner in step. 0: a minibatch may hold any steps.
        """
        size = num_envs * horizon
        if size % self.minibatch_size:
            why = f"does not divide a rollout of num_envs={num_envs} x horizon={horizon} = {size} "
            why += "steps"
        elif num_sequences and self.minibatch_size % (num_sequences * horizon):
            shares = f" for each of {num_sequences} learners" if num_sequences > 1 else ""
            why = f"is not a multiple of horizon={horizon}{shares}, and a memory learns from "
            why += "whole sequences of that length"
        else:
            return
        unit = max(1, num_sequences * horizon)
        most = max(unit, min(size, self.minibatch_size))
        fits = [each for each in range(unit, most + 1, unit) if size % each == 0]
        use = f"minibatch_size={fits[-1]}, or another" if fits else "another"
        raise ValueError(
            f"minibatch_size={self.minibatch_size} {why}; use {use} num_envs or horizon"
        )


class Minibatches:
    """Divides each rollout of a learner into minibatches, in another order in each epoch.

    A recurrent network gets whole sequences: all steps of some environments.

    Args:
        learner: The learner. Its ``prepare`` returns all steps of a rollout, see `choose`.
        choose: A function like `choose`.
        is_recorded: Whether CUDA graphs, if there are any, may choose the minibatches.
    """

    def __init__(
        self,
        learner: Any,
        choose: Callable[[Any, Tensor], Any],
        *,
        is_recorded: bool = True,
    ) -> None:
        self._learner, self._choose = learner, choose
        self._shuffling = torch.Generator().manual_seed(learner.task.seed)  # on the host
        self._is_recorded = is_recorded and learner.graphs is not None
        self._prepared = learner.optimizer.recorded(self._prepare)
        self._whole, self._turns = Fixed(None), Turns()
        self.mean_return = torch.tensor(0.0)

    def get_state(self) -> dict[str, Any]:
        """Return what is added to a learner's state."""
        return {"shuffling": self._shuffling.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a learner's state. A state without a generator changes nothing."""
        if "shuffling" in state:
            restore(self._shuffling, state["shuffling"])

    def of(self, batch: RolloutTensors) -> Iterator[Any]:
        """Prepare a rollout, and yield the minibatches of all epochs, inputs of `minimize`."""
        config, sharing = self._learner.config, self._learner.sync.num_sharing
        device = self._learner.device
        has_finals = len(batch.final_step) > 0  # most often not
        prepare = self._prepare if has_finals else self._prepared
        whole, self.mean_return = prepare(self._learner.given(batch))
        steps = whole.tree if isinstance(whole, Fixed) else whole
        num, length = len(steps.valid), 1  # of columns, and steps that stay together
        if steps.sequences is not None:
            length, num = steps.sequences.is_first.shape
            config.check_rollout(num * sharing, length, sharing)
        size = config.minibatch_size // sharing // length
        orders = [torch.randperm(num, generator=self._shuffling) for _ in range(config.epochs)]
        if not isinstance(whole, Fixed) or num % size:
            is_small = steps.sequences is None and _bytes_of(steps) < _MOST_BYTES_AT_ONCE
            for order in orders:
                order = send(order, device)
                if is_small and num % size == 0:
                    yield from _rows_of(self._choose(steps, order.view(-1, size)))
                    continue
                for chosen in torch.split(order, size):
                    yield self._choose(steps, chosen)
            return
        table = self._turns.fill(torch.cat(orders).view(-1, size), device)
        chosen_next = Fixed((steps, table), self._next)
        for _ in range(len(table) - 1):
            yield chosen_next

    def _prepare(self, batch: RolloutTensors) -> tuple[Any, Tensor]:
        whole = self._learner.prepare(batch)
        mean_return = masked_mean(whole.return_, whole.valid)
        return self._whole.hold(whole) if self._is_recorded else whole, mean_return

    def _next(self, whole: Any, table: Tensor) -> Any:
        return self._choose(whole, take_turn(table))


def all_steps(tree: Any) -> Any:
    """Return ``[T * B, ...]`` of each tensor ``[T, B, ...]`` of observations."""
    return map_leaves(_steps, tree)


def choose(whole: Any, chosen: Tensor) -> Any:
    """Return some steps of all steps of a rollout, ``[T * B, ...]``.

    Args:
        whole: a NamedTuple with a field ``sequences``: those of the rollout, or None.
        chosen: places of the steps, ``[N]`` int64, or ``[M, N]`` of ``M`` minibatches at once; with
            sequences the environments, ``[n]``, all of whose steps are chosen.
    """
    sequences, index = whole.sequences, chosen
    if sequences is not None:
        T, B = sequences.is_first.shape
        first = B * torch.arange(T, device=chosen.device).unsqueeze(1)
        index, sequences = (first + chosen).flatten(), sequences.of(chosen)

    def rows(field: Any) -> Any:
        return None if field is None else map_leaves(lambda each: _rows(each, index), field)

    fields = {name: rows(each) for name, each in whole._asdict().items() if name != "sequences"}
    return whole._replace(**fields, sequences=sequences)


def _bytes_of(whole: Any) -> int:
    """Return the bytes of all steps of a rollout, a NamedTuple of tensors and mappings."""
    sizes: list[int] = []
    for each in whole:
        if each is not None:
            map_leaves(lambda leaf: sizes.append(leaf.nbytes), each)
    return sum(sizes)


def _rows_of(many: Any) -> Iterator[Any]:
    """Yield ``M`` minibatches of a NamedTuple whose fields have them in rows, ``[M, N, ...]``."""
    num = len(many.valid)
    fields = [
        [None] * num if each is None else [map_leaves(itemgetter(i), each) for i in range(num)]
        for each in many
    ]
    return map(type(many)._make, zip(*fields, strict=True))


def _steps(observation: Tensor) -> Tensor:
    flat = observation.flatten(0, 1)
    if _has_channels_first(flat):
        # As convolutions want them, once instead of once for every minibatch.
        return flat.contiguous(memory_format=torch.channels_last)
    return flat


def _rows(observation: Tensor, index: Tensor) -> Tensor:
    """``observation[index]``, images likewise channels last; it takes half the time on the CPU."""
    if index.ndim > 1 or not _has_channels_first(observation):
        return observation[index]
    return observation.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)


def _has_channels_first(observation: Tensor) -> bool:
    return observation.ndim == 4 and observation.shape[1] < observation.shape[3]
