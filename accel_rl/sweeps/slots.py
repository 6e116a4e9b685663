"""The places in which runs of a sweep run, with a share of the cores and of the GPUs each."""

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
    """The CPUs and GPUs of one run at a time; ``gpus`` are names for CUDA_VISIBLE_DEVICES."""

    cpus: tuple[int, ...]
    gpus: tuple[str, ...]


def make_slots(
    options: SweepOptions, gpus: Sequence[str], machine: Machine, gpus_of_run: int = 1
) -> list[Slot]:
    """Return equal shares of ``machine``, in order, for ``slots`` runs at a time.

    Slots beyond the number of cores or GPUs share them. Of more cores than the quota pays for, the
    first are taken, so that the runs do not plan for what they cannot have together.
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
    """Return shares of this machine, with GPUs unless no run uses one."""
    found = torch.cuda.device_count()
    most = max(_num_gpus(config, found) for config in configs)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(number) for number in range(found)]
    if not (gpus and gpus[0].startswith("MIG-")):  # of which CUDA shows only the first
        gpus = gpus[:found]
    gpus = gpus if most else []
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
    if config.device == "cpu" or config.gpus == 0:
        return 0
    return min(config.gpus or config.num_learners, found)
