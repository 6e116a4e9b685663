"""Whether a replay memory fits its device, before it is taken."""

from __future__ import annotations

import logging

import torch

from accel_rl.algos.replay.spec import ReplaySpec
from accel_rl.system.topology import free_memory

_LOGGER = logging.getLogger(__name__)


def check_free_memory(
    spec: ReplaySpec, device: torch.device, num_learners: int = 1, num_local: int = 1
) -> None:
    """Raises ValueError unless ``device`` has memory for a replay, and a GPU for updates, too.

    ``num_learners``: of whose replay that is one part; the machine must hold ``num_local`` of them.
    """
    if device.type == "cuda":
        num_local = 1  # what others have is not free: they take it at once
    if spec.nbytes * num_local > _free(spec, device):
        raise replay_too_large(spec, device, num_learners, num_local)


def replay_device(spec: ReplaySpec, device: torch.device) -> torch.device:
    """Return ``device``, or the CPU if a GPU has too little free memory for the replay."""
    if device.type != "cuda" or spec.nbytes <= _free(spec, device):
        return device
    _LOGGER.warning(
        "the replay takes %.1f GB, more than %s has free; it is in the memory of the CPU, which is "
        "slower",
        spec.nbytes / 1e9,
        device,
    )
    return torch.device("cpu")


def _free(spec: ReplaySpec, device: torch.device) -> int:
    """Bytes that a replay may take: of a GPU all but a tenth, or what an update needs."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return max(0, free - max(free // 10, spec.update_bytes))
    return free_memory()


def replay_too_large(
    spec: ReplaySpec, device: torch.device, num_learners: int, num_local: int = 1
) -> ValueError:
    """What `check_free_memory` raises."""
    free, nbytes, size = _free(spec, device), spec.nbytes, spec.size
    fits = num_learners * int(size * free / (nbytes * num_local) * 0.9)
    what = f"a replay of buffer_size={size}"
    if num_learners > 1:
        what = f"each of {num_learners} learners' parts of the replay"
    shared = f" for {num_local} of them" if num_local > 1 else ""
    return ValueError(
        f"{what} takes {nbytes / 1e9:.1f} GB, and {device} has {free / 1e9:.1f} GB free for it"
        f"{shared}; use buffer_size={fits} or less"
    )
