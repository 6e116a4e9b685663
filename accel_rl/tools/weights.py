"""The weights of a policy in safetensors: its network's ``state_dict`` and its normalizer.

Names of the network are those of its ``state_dict``. ``normalizer/mean/NAME`` and
``normalizer/scale/NAME`` are there if observations are normalized, for each leaf ``NAME``.
"""

from __future__ import annotations

from accel_rl.agents import AnyAgent, normalizer_state

_NORMALIZER = "normalizer/"


def pack_weights(agent: AnyAgent) -> bytes:
    """Return the content of a safetensors file."""
    from safetensors.torch import save

    tensors = dict(agent.model.state_dict())
    for kind, leaves in normalizer_state(agent).get("normalizer", {}).items():
        tensors |= {f"{_NORMALIZER}{kind}/{name}": each for name, each in leaves.items()}
    # Copies, since parameters lie side by side in one memory, which safetensors refuses.
    copies = {name: each.detach().cpu().clone().contiguous() for name, each in tensors.items()}
    content: bytes = save(copies)
    return content
