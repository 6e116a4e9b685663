"""Where the runs of a sweep go: each slot has a share of the cores and of the GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from accel_rl.config import TrainConfig
from accel_rl.sweeps.plan import SweepOptions
from accel_rl.system.topology import Machine, plan_cores, read_machine


@dataclass(frozen=True)
class Slot:
    """``cpus``: the mask of its run. ``gpus``: for CUDA_VISIBLE_DEVICES; empty: none is there."""

    cpus: tuple[int, ...]
    gpus: tuple[str, ...]


def make_slots(
    options: SweepOptions, gpus: Sequence[str], machine: Machine, gpus_of_run: int = 1
) -> list[Slot]:
    """Equal shares of ``machine``, in order, for ``slots`` runs at a time.

    Slots beyond the number of cores or GPUs share them. Of more cores than the quota pays for, the
    first are taken, so that the runs do not plan for what they cannot have together.

    Raises:
        ValueError: ``cpus`` names one that cannot be had.
    """
    num_slots = options.slots or max(1, len(gpus) // gpus_of_run)
    cpus: Sequence[int] | None = options.cpus or None
    if cpus is None and machine.quota is not None and machine.quota < len(machine.cores):
        cpus = [cpu for core in machine.cores[: max(1, int(machine.quota))] for cpu in core.cpus]
    slots = []
    for rank in range(num_slots):
        plan = plan_cores(rank=rank, num_ranks=num_slots, cpus=cpus, machine=machine)
        first = rank * len(gpus) // num_slots
        end = (rank + 1) * len(gpus) // num_slots
        slots.append(Slot(plan.server_cpus, tuple(gpus[first : max(end, first + 1)])))
    return slots


def slots_here(options: SweepOptions, configs: Sequence[TrainConfig]) -> list[Slot]:
    """Shares of this machine, of its GPUs too unless all runs are to use none.

    Raises:
        ValueError: ``cpus`` names one that cannot be had, or ``slots`` are too many for the GPUs
            that a run is to use.
    """
    found = torch.cuda.device_count()
    most = max(_num_gpus(config, found) for config in configs)
    gpus: list[str] = []
    if most:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = [str(number) for number in range(found)]
        if visible:
            gpus = visible.split(",")
            # Of parts of a GPU (MIG) CUDA shows a process the first one alone.
            gpus = gpus if gpus[0].startswith("MIG-") else gpus[:found]
    slots = make_slots(options, gpus, read_machine(), max(1, most))
    asked = max(config.gpus or 0 for config in configs)
    fewest = min(len(slot.gpus) for slot in slots)
    if fewest < asked <= found:
        raise ValueError(
            f"slots={options.slots} gives a run {fewest} of {found} GPUs, and gpus={asked} asks "
            f"for more; use slots={found // asked} or fewer, or leave slots out"
        )
    return slots


def _num_gpus(config: TrainConfig, found: int) -> int:
    """Of the GPUs ``found``, how many a run would use if it were alone."""
    if config.device == "cpu" or config.gpus == 0:
        return 0
    return min(config.gpus or config.num_learners, found)
