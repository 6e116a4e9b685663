"""Which device a learner's network runs on."""

from __future__ import annotations

import contextlib
import zlib

import torch

from accel_rl.capture import EAGER, Capture, check_compilers
from accel_rl.config import TrainConfig
from accel_rl.envs import is_atari_game
from accel_rl.parallel import Ranks, Team
from accel_rl.topology import gpu_numa_node


def pick_device(name: str) -> torch.device:
    """The device that ``name`` (auto, cpu, cuda) means; a ValueError if there is none here."""
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {name}; it must be auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, but torch finds no GPU here; use device=cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def learner_device(config: TrainConfig, ranks: Ranks) -> torch.device:
    """The device of one learner; where there are fewer GPUs than learners, these share them.

    Raises:
        ValueError: the config asks for a GPU and torch finds none.
    """
    device = pick_device("cpu" if config.gpus == 0 else config.device)
    if device.type == "cpu" or ranks.size == 1:
        return device
    device = torch.device("cuda", ranks.local_rank % num_gpus(config))
    torch.cuda.set_device(device)
    return device


def make_capture(config: TrainConfig, device: torch.device) -> Capture:
    """What captures acting and learning on ``device``, as the config says.

    Raises:
        ValueError: what that needs is not on this machine.
    """
    if config.capture == "off" or config.never_captured is not None:
        return EAGER
    if config.capture == "auto" and device.type == "cpu" and not pays_to_compile(config):
        return EAGER
    check_compilers(device)
    return Capture(device)


def pays_to_compile(config: TrainConfig) -> bool:
    """Return whether compiled acting and updates save more time of a run on a CPU than they take.

    At least twice as much, where there is a compiler. The figures are `LearnerConfig.compiled` of
    the algorithm, measured with one learner and a network for Atari's images by
    ``benchmarks/training/capture_speed.py``. Other runs were not measured, nor were several
    learners, each of which would compile.
    """
    compiled = vars(type(config.learner)).get("compiled")
    is_measured = is_atari_game(config.env) and ":" not in config.model and not config.lstm
    if compiled is None or not is_measured or config.num_learners > 1:
        return False
    seconds = config.planned_steps / 1e6 * compiled.per_million
    if config.max_minutes is not None:
        seconds = min(seconds, 60 * config.max_minutes)
    if seconds * compiled.share < 2 * compiled.seconds:
        return False
    with contextlib.suppress(ValueError):
        check_compilers(torch.device("cpu"))
        return True
    return False


def computes_bfloat16_slowly(config: TrainConfig, device: torch.device) -> bool:
    """Whether updates in bfloat16, as the config asks, take longer here than in float32 would.

    On a CPU with AVX2 alone A2C trained at less than a third of the speed.
    """
    is_slow = device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"
    return is_slow and config.learner.precision == "bfloat16"


def check_same_processors(config: TrainConfig, team: Team) -> None:
    """Raises ValueError, in all learners, unless their GPUs, or CPUs, are of one kind.

    In step each applies the rule to its own copy of the parameters. They stay equal to the bit
    where the gradient's norm is rounded alike; how a GPU divides a sum depends on its model.
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
    """Whether every learner, of other machines too, runs on a GPU that it shares with no other.

    To be asked by all of them.
    """
    on_gpu = pick_device("cpu" if config.gpus == 0 else config.device).type == "cuda"
    have_own = on_gpu and team.ranks.local_size <= num_gpus(config)
    team.reach("own GPU", 1, int(have_own))
    return have_own and all(team.wait_for_all("own GPU", 1).values())


def num_gpus(config: TrainConfig) -> int:
    """Of this machine that the learners here share."""
    found = torch.cuda.device_count()
    return min(config.gpus or found, found)


def gpu_nodes(num_learners: int, num_gpus: int) -> list[int | None]:
    """The NUMA node of the GPU of each learner on this machine, None where unknown."""
    return [_node(rank % num_gpus) for rank in range(num_learners)]


def _node(index: int) -> int | None:
    properties = torch.cuda.get_device_properties(index)
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    if not all(hasattr(properties, name) for name in names):  # torch tells since 2.8
        return None
    domain, bus, device = (getattr(properties, name) for name in names)
    return gpu_numa_node(f"{domain:04x}:{bus:02x}:{device:02x}.0")
