"""The weights of a policy in safetensors: its network's ``state_dict`` and its normalizer.

Names of the network are those of its ``state_dict``. ``normalizer/mean/NAME`` and
``normalizer/scale/NAME`` are there if observations are normalized, for each leaf ``NAME``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from accel_rl.agents import Agent, normalizer_state
from accel_rl.parallel.flat import plain_name
from accel_rl.runs.checkpoint import DamagedError
from accel_rl.runs.files import open_regular
from accel_rl.system.extras import missing_package
from accel_rl.system.functions import first_line

_NORMALIZER = "normalizer/"


def pack_weights(agent: Agent, metadata: dict[str, str] | None = None) -> bytes:
    """Return the content of a safetensors file, with ``metadata`` in its header."""
    from safetensors.torch import save

    tensors = _named(agent.model)
    for kind, leaves in normalizer_state(agent).get("normalizer", {}).items():
        tensors |= {f"{_NORMALIZER}{kind}/{name}": each for name, each in leaves.items()}
    # Copies, since parameters lie side by side in one memory, which safetensors refuses.
    copies = {name: each.detach().cpu().clone().contiguous() for name, each in tensors.items()}
    content: bytes = save(copies, metadata)
    return content


def unpack_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """Read what `pack_weights` wrote, as the entries of a checkpoint that a policy needs.

    ``model`` stays as it is. Buffers of the file are left out, since ``model`` has them.
    """
    try:
        from safetensors import safe_open
    except ModuleNotFoundError as error:
        raise ValueError(missing_package(f"reading {path}", "hub", error)) from error
    try:
        open_regular(path).close()  # a pipe would be waited for
        with safe_open(path, "pt") as file:
            steps = int((file.metadata() or {})["steps"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except Exception as error:  # the disk's, or one of the reader's many
        raise DamagedError(
            f"{path} is not a safetensors file, or is damaged ({first_line(error)}); copy or "
            "download it again"
        ) from error
    normalizer: dict[str, dict[str, Tensor]] = {"mean": {}, "scale": {}}
    for name in [name for name in tensors if name.startswith(_NORMALIZER)]:
        kind, _, leaf = name.removeprefix(_NORMALIZER).partition("/")
        normalizer.setdefault(kind, {})[leaf] = tensors.pop(name)
    _check_shapes(path, tensors, model)
    names = [plain_name(name) for name, _ in model.named_parameters()]
    parameters = {name: tensors[name] for name in names}
    state = {"counts": {"steps": steps}, "learner": {"parameters": parameters}}
    return state | ({"normalizer": normalizer} if any(normalizer.values()) else {})


def _named(model: nn.Module) -> dict[str, Tensor]:
    return {plain_name(name): each for name, each in model.state_dict().items()}


def _check_shapes(path: Path, found: Mapping[str, Tensor], model: nn.Module) -> None:
    expected = {name: list(each.shape) for name, each in _named(model).items()}
    shapes = {name: list(each.shape) for name, each in found.items()}
    if expected != shapes:
        names = sorted(n for n in expected | shapes if expected.get(n) != shapes.get(n))
        raise ValueError(
            f"{path} is not of the network that config.yaml beside it describes; they differ in "
            f"{', '.join(names[:9])}; use the directory as accel_rl package made it"
        )
