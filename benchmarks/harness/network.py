"""The networks in the loop, ours and the peers' alike: same layers, dtype and number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

if TYPE_CHECKING:
    from accel_rl.agents import PolicyAgent

Act = Callable[[NDArray[np.uint8]], NDArray[np.int64]]


def make_agent(spec: dict[str, Any]) -> tuple[PolicyAgent, dict[str, Any]]:
    """A3C-Net with initial weights, and what is to be said of it.

    ``spec``: observation_shape, num_actions, torch_threads, device, seed, malloc.
    """
    from accel_rl.agents import PolicyAgent
    from accel_rl.models import make_model
    from accel_rl.spaces import Leaf

    torch.set_num_threads(spec["torch_threads"])
    torch.manual_seed(spec["seed"])
    shape = tuple(spec["observation_shape"])
    model = make_model("a3c", Leaf(shape, np.dtype(np.uint8)), spec["num_actions"])
    settings = {name: spec[name] for name in ("torch_threads", "device", "malloc")}
    return PolicyAgent(model.to(spec["device"])), settings


def make_act(spec: dict[str, Any]) -> tuple[Act, dict[str, Any]]:
    """A function from observations ``[n, ...]`` to actions ``[n]``, both NumPy."""
    agent, settings = make_agent(spec)
    rng = np.random.default_rng(spec["seed"])
    device = spec["device"]

    def act(observation: NDArray[np.uint8]) -> NDArray[np.int64]:
        noise = torch.from_numpy(rng.random(len(observation)))
        with torch.inference_mode():
            actions = agent.act(
                torch.from_numpy(observation).to(device), noise.to(device), slice(None)
            )
        return actions.cpu().numpy()

    return act, settings


def make_trunk(network: dict[str, Any]) -> nn.Sequential:
    """The layers in plain torch, for peers: images ``[N, 4, H, W]`` in [0, 1] to ``[N, hidden]``.

    ``network``: ``image`` [H, W], ``convs`` [[channels, kernel, stride, padding], ...], ``hidden``.
    """
    layers: list[nn.Module] = []
    channels, (height, width) = 4, network["image"]
    for out, kernel, stride, padding in network["convs"]:
        layers += [nn.Conv2d(channels, out, kernel, stride, padding), nn.ReLU()]
        channels = out
        height, width = ((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
    size = channels * height * width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, network["hidden"]), nn.ReLU())
