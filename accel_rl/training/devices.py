"""How many learners a run has, and on which devices their networks compute."""

from __future__ import annotations

import hashlib
import sys
import zlib
from typing import Any

import torch
from torch import nn

from accel_rl.config import TrainConfig
from accel_rl.graphs import Graphs
from accel_rl.models.own import own_network
from accel_rl.parallel import Ranks, Team
from accel_rl.system.topology import gpu_numa_node


def check_learners(config: TrainConfig, ranks: Ranks) -> None:
    """Check that the learners that were started can train as ``config`` says."""
    if sys.platform != "linux" and max(ranks.size, config.num_learners) > 1:
        raise ValueError(
            f"several learners need Linux, and this is {sys.platform}; leave learners and gpus out"
        )
    found = torch.cuda.device_count()
    if config.gpus is not None and config.gpus > found:
        raise ValueError(
            f"gpus={config.gpus}, but torch finds {found or 'no'} GPU{'s' * (found > 1)} here; use "
            + (f"gpus={found} learners={config.num_learners} to share" if found else "gpus=0")
        )
    if ranks.size > 1:
        _check_against_launcher(config, ranks)
    num = max(ranks.size, config.num_learners)
    if num == 1 or config.parallel.sync == "store":
        return
    sampler, learner = config.sampler, config.learner
    num_envs = sampler.num_envs
    whole_envs = num * sampler.num_groups
    if num_envs % whole_envs:
        near = f"num_envs={max(whole_envs, num_envs // whole_envs * whole_envs)}"
        groups = f" of {sampler.num_groups} groups each"
        raise _indivisible("num_envs", num_envs, num, near, groups)
    for name, (size, whole) in learner.batches(sampler).items():
        if size % num:
            # Where ``whole`` samples must be whole batches, the batch divides them, too.
            fit = [n for n in range(num, max(size, num) + 1, num) if (whole or 0) % n == 0]
            raise _indivisible(name, size, num, f"{name}={fit[-1]}")


def _check_against_launcher(config: TrainConfig, ranks: Ranks) -> None:
    advice = "leave it out, or start as many with torchrun --nproc-per-node"
    if config.learners not in (None, ranks.size):
        raise ValueError(
            f"learners={config.learners}, but the launcher has started {ranks.size}; {advice}"
        )
    if config.learners is None and config.gpus and config.gpus != ranks.local_size:
        raise ValueError(
            f"gpus={config.gpus}, but the launcher has started {ranks.local_size} learners on "
            f"this machine; {advice}, or give learners={ranks.size} to share the GPUs"
        )
    if config.parallel.sync == "store" and ranks.local_size != ranks.size:
        raise ValueError(
            "sync=store is for learners of one machine, whose memory they share; use "
            "sync=all_reduce across machines"
        )


def _indivisible(name: str, size: int, num: int, near: str, groups: str = "") -> ValueError:
    return ValueError(
        f"{name}={size} does not divide among {num} learners{groups}; use {near}, or another "
        "number of learners"
    )


def pick_device(name: str) -> torch.device:
    """Return the device that ``name`` (auto, cpu, cuda) means; ValueError if it is not here."""
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {name}; it must be auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, but torch finds no GPU here; use device=cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def learner_device(config: TrainConfig, ranks: Ranks) -> torch.device:
    """Return the device of one learner; learners share GPUs if there are fewer."""
    device = pick_device("cpu" if config.gpus == 0 else config.device)
    if device.type == "cpu" or ranks.size == 1:
        return device
    device = torch.device("cuda", ranks.local_rank % num_gpus(config))
    torch.cuda.set_device(device)
    return device


def make_graphs(config: TrainConfig, device: torch.device) -> Graphs | None:
    """Return what records acting and learning on ``device``, or None if nothing does."""
    if device.type != "cuda":
        if config.cuda_graphs == "on":
            raise ValueError("cuda_graphs=on, but this run is on the CPU; use cuda_graphs=auto")
        return None
    if config.cuda_graphs == "off" or config.learner.never_recorded(config) is not None:
        return None
    return Graphs(device, is_required=config.cuda_graphs == "on")


def graphs_of(config: TrainConfig, model: nn.Module, graphs: Graphs | None) -> Graphs | None:
    """Return ``graphs``, or None if they would record users' code that was not written for that.

    What such code does in Python, such as counting, is done while it is recorded, and never again.
    """
    if graphs is None or graphs.is_required:
        return graphs
    parts = [config.learner, *([own_network(model)] if ":" in config.model else [])]
    are_recorded = (
        type(part).__module__.startswith("accel_rl.") or getattr(part, "is_recorded", False)
        for part in parts
    )
    return graphs if all(are_recorded) else None


def check_same_processors(config: TrainConfig, team: Team) -> None:
    """Raise ValueError, in all learners, unless their GPUs, or CPUs, are of one kind.

    In step each learner applies the rule to its own parameters. They stay equal to the bit if the
    gradient's norm is rounded alike; how a GPU divides a sum depends on its model.
    """
    device, kind = learner_device(config, team.ranks), torch.backends.cpu.get_cpu_capability()
    if device.type == "cuda":
        kind = torch.cuda.get_device_name(device)
    own = zlib.crc32(kind.encode())
    team.reach("processor", 1, own)
    others = [rank for rank, each in team.wait_for_all("processor", 1).items() if each != own]
    if others:
        raise ValueError(
            f"learner {team.ranks.rank} computes on {kind}, and learner {others[0]} on another "
            f"kind: in step their parameters would drift apart; use sync=store, or GPUs (CPUs) of "
            f"one kind"
        )


def all_have_own_gpus(config: TrainConfig, team: Team) -> bool:
    """Return whether every learner, of other machines too, has a GPU that it shares with nobody.

    All learners must call it. A GPU is known by its UUID, since a learner may see its own alone.
    """
    own = 0
    if pick_device("cpu" if config.gpus == 0 else config.device).type == "cuda":
        properties = torch.cuda.get_device_properties(team.ranks.local_rank % num_gpus(config))
        own = int.from_bytes(hashlib.sha256(str(properties.uuid).encode()).digest()[:7])
    team.reach("own GPU", 1, own)
    all_of_them = [own, *team.wait_for_all("own GPU", 1).values()]
    return 0 not in all_of_them and len(set(all_of_them)) == team.ranks.size


def num_gpus(config: TrainConfig) -> int:
    """Return the number of GPUs that the learners of this machine share."""
    found = torch.cuda.device_count()
    return min(config.gpus or found, found)


def describe_sharing(config: TrainConfig, ranks: Ranks, device: torch.device) -> str:
    """Return a line if learners of this machine share GPUs, else an empty text."""
    if device.type != "cuda" or ranks.local_size <= (num := num_gpus(config)):
        return ""
    gpus = "one GPU" if num == 1 else f"{num} GPUs"
    return (
        f"{ranks.local_size} learners share {gpus}, where their work is done in turns unless "
        f"NVIDIA's MPS runs; start nvidia-cuda-mps-control -d before the run (docs/learners.md)"
    )


def gpu_nodes(num_learners: int, num_gpus: int) -> list[int | None]:
    """Return the NUMA node of the GPU of each learner on this machine; None if unknown."""
    return [_node(rank % num_gpus) for rank in range(num_learners)]


def _node(index: int) -> int | None:
    properties: Any = torch.cuda.get_device_properties(index)
    place = properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id
    return gpu_numa_node("{:04x}:{:02x}:{:02x}.0".format(*place))
