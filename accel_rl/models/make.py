"""Networks by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from accel_rl.models.image import (
    A3C_NET,
    DQN_NET,
    GA3C_LARGE_NETS,
    MINATAR_NET,
    NATURE_NET,
    NIPS_NET,
    PAAC_NATURE_NET,
    ImageNetwork,
    ImageSpec,
    Picture,
    picture_of,
)
from accel_rl.models.joined import JoinedNetwork
from accel_rl.models.layer_norm import (
    LSTM_WIDTH,
    PQN_MINATAR_NET,
    PQN_NET,
    NormalizedImageTrunk,
    NormalizedMLPTrunk,
    NormalizedQNetwork,
    NormalizedTrunk,
    q_output,
)
from accel_rl.models.memory import PLAIN_LSTM, MemorySpec
from accel_rl.models.mlp import MLP, RecurrentMLP
from accel_rl.models.own import make_own_model, make_own_q_model
from accel_rl.models.policy_value import PolicyValueModel
from accel_rl.models.q_value import ImageQNetwork, MLPQNetwork, QModel
from accel_rl.models.recurrent import RecurrentModel, SharedRecurrentModel
from accel_rl.models.recurrent_q import (
    RecurrentQNetwork,
    make_recurrent_image_q_network,
    make_recurrent_mlp_q_network,
)
from accel_rl.models.residual import IMPALA_NET
from accel_rl.spaces import Leaf, Space, describe

_IMAGE_SPECS = {
    spec.name: spec
    for spec in (
        *(A3C_NET, DQN_NET, NATURE_NET, NIPS_NET, IMPALA_NET, MINATAR_NET),
        *(PAAC_NATURE_NET, *GA3C_LARGE_NETS),
    )
}

MODEL_NAMES = ("auto", *_IMAGE_SPECS, "mlp", "pqn")

_CPU = torch.device("cpu")


def make_model(
    name: str,
    observation: Space,
    num_actions: int,
    device: torch.device = _CPU,
    observations: Any = None,
) -> PolicyValueModel:
    """Return a network for policies, with fresh parameters from torch's global generator.

    Args:
        name: ``auto``; for pictures ``a3c``, ``dqn``, ``nature``, ``nips``,
            ``impala``, ``minatar``, ``paac_nature`` or ``ga3c_large_stride4`` (or 3, 2, 1); ``mlp``
            for other observations; or ``module:function`` of your own. ``auto`` is ``a3c`` for
            pictures that are large enough for it, else ``mlp``; of a mapping it joins networks for
            each leaf.
        observation: the space of observations.
        num_actions: number of logits, ``A``.
        device: device of the parameters.
        observations: two observations, ``[2, ...]``, with which a network of your own is tested.

    Raises:
        ValueError: there is no such network, or it does not fit the observations.
    """
    if ":" in name:
        return make_own_model(name, observation, num_actions, device, observations)
    if not isinstance(observation, Leaf):
        if name not in ("auto", "mlp"):
            raise ValueError(
                f"model={name} is for one picture, and observations are {describe(observation)}; "
                f"use model=auto, which joins them, or module:function"
            )
        return JoinedNetwork(observation, num_actions).to(device)
    spec, picture = _choose(name, "a3c", observation)
    if spec is None:
        return MLP(observation.shape, num_actions).to(device)
    assert picture is not None
    return ImageNetwork(spec, picture, num_actions).to(device)


def make_recurrent_model(
    name: str,
    observation: Leaf,
    num_actions: int,
    device: torch.device = _CPU,
    memory: MemorySpec = PLAIN_LSTM,
) -> RecurrentModel:
    """Return a network for policies with a memory before its heads; ``mlp`` has one for each head.

    Args:
        name: name of the network, as in `make_model`, without ``module:function``.
        observation: the space of observations, one array.
        num_actions: number of logits, ``A``.
        device: device of the parameters.
        memory: kind of memory.

    Raises:
        ValueError: there is no such network, or it does not fit the observations.
    """
    _check_own_heads(name)
    spec, picture = _choose(name, "a3c", observation)
    if spec is None:
        return RecurrentMLP(observation.shape, num_actions, memory).to(device)
    assert picture is not None
    network = ImageNetwork(spec, picture, num_actions)
    return SharedRecurrentModel(network, memory).to(device)


def make_q_model(
    name: str,
    observation: Leaf,
    num_actions: int,
    num_atoms: int = 1,
    is_dueling: bool = False,
    device: torch.device = _CPU,
    observations: Any = None,
) -> QModel:
    """Return a network for Q-learning, with fresh parameters from torch's global generator.

    Args:
        name: name of the network, as in `make_model`, or ``pqn``, which has layer normalization.
            ``auto`` is ``dqn`` for pictures that are large enough for it, else ``mlp``.
        observation: the space of observations, one array.
        num_actions: number of actions, ``A``.
        num_atoms: number of atoms, ``K``; 1: values only.
        is_dueling: whether value and advantages have separate streams.
        device: device of the parameters.
        observations: two observations, ``[2, ...]``, with which a network of your own is tested.

    Raises:
        ValueError: there is no such network, or it does not fit the observations.
    """
    if ":" in name:
        outputs = num_actions, num_atoms, is_dueling
        return make_own_q_model(name, observation, *outputs, device, observations)
    if name == "pqn":
        if is_dueling:
            raise ValueError(
                "model=pqn has one stream, and dueling=true needs two; use dueling=false, or "
                "another model"
            )
        trunk = _make_normalized_trunk(observation)
        return NormalizedQNetwork(trunk, num_actions, num_atoms).to(device)
    spec, picture = _choose(name, "dqn", observation)
    if spec is None:
        return MLPQNetwork(observation.shape, num_actions, num_atoms, is_dueling).to(device)
    assert picture is not None
    return ImageQNetwork(spec, picture, num_actions, num_atoms, is_dueling).to(device)


def make_recurrent_q_model(
    name: str,
    observation: Leaf,
    num_actions: int,
    num_atoms: int = 1,
    is_dueling: bool = False,
    device: torch.device = _CPU,
    memory: MemorySpec = PLAIN_LSTM,
) -> RecurrentModel:
    """Return a network for Q-learning with a memory.

    Args:
        name: name of the network, as in `make_q_model`, without ``module:function``.
        observation: the space of observations, one array.
        num_actions: number of actions, ``A``.
        num_atoms: number of atoms, ``K``; 1: values only.
        is_dueling: whether value and advantages have separate streams.
        device: device of the parameters.
        memory: kind of memory.

    Raises:
        ValueError: there is no such network, or it does not fit the observations.
    """
    _check_own_heads(name)
    if name == "pqn":
        trunk = _make_normalized_trunk(observation)
        width = min(trunk.num_features, LSTM_WIDTH)
        stream = partial(q_output, width)
        outputs = num_actions, num_atoms, is_dueling, memory
        return RecurrentQNetwork(trunk, trunk.num_features, width, stream, *outputs).to(device)
    spec, picture = _choose(name, "dqn", observation)
    outputs = num_actions, num_atoms, is_dueling, memory
    if spec is None:
        return make_recurrent_mlp_q_network(observation.shape, *outputs).to(device)
    assert picture is not None
    return make_recurrent_image_q_network(spec, picture, *outputs).to(device)


def fits_images(name: str, observation: Leaf) -> bool:
    """Whether observations are pictures that are large enough for the network ``name``."""
    return _IMAGE_SPECS[name].fits(picture_of(observation))


def _make_normalized_trunk(observation: Leaf) -> NormalizedTrunk:
    picture = picture_of(observation)
    for spec in (PQN_NET, PQN_MINATAR_NET):
        if spec.fits(picture):
            return NormalizedImageTrunk(spec, picture)
    return NormalizedMLPTrunk(observation.shape)


def _check_own_heads(name: str) -> None:
    if ":" in name:
        raise ValueError(
            f"lstm=true and gru=true put a memory before the heads of the networks that come with "
            f"accel_rl, and model={name} has heads of its own; leave them out, or use another model"
        )


def _choose(
    name: str, automatic: str, observation: Leaf
) -> tuple[ImageSpec | None, Picture | None]:
    """The layers that ``name`` stands for and the picture; no layers for ``mlp``."""
    if name not in MODEL_NAMES:
        raise ValueError(
            f"model is {name!r}; it must be one of {', '.join(MODEL_NAMES)}, or module:function"
        )
    if name == "pqn":
        raise ValueError(
            "model=pqn is a network for Q-learning, and this algorithm needs one with a policy; "
            "use model=auto, or another model"
        )
    if name == "auto":
        name = automatic if fits_images(automatic, observation) else "mlp"
    if name == "mlp":
        return None, None
    picture = picture_of(observation)
    if picture is None:
        raise ValueError(
            f"model={name} needs pictures, of shape [channels, height, width] or [height, width, "
            f"channels]; observations are {describe(observation)}; use model=mlp or auto"
        )
    return _IMAGE_SPECS[name], picture
