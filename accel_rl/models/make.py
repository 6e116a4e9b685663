"""Networks by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
    refuse_channels_last,
)
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
    RecurrentQModel,
    RecurrentQNetwork,
    make_recurrent_image_q_network,
    make_recurrent_mlp_q_network,
)
from accel_rl.models.residual import IMPALA_NET

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
    observation_shape: tuple[int, ...],
    observation_dtype: np.dtype[Any],
    num_actions: int,
    device: torch.device = _CPU,
    observations: NDArray[Any] | None = None,
) -> PolicyValueModel:
    """Return a network for policies, with fresh parameters from torch's global generator.

    Args:
        name: ``auto``; for images (uint8 ``[C, H, W]``) ``a3c``, ``dqn``, ``nature``, ``nips``,
            ``impala``, ``minatar``, ``paac_nature`` or ``ga3c_large_stride4`` (or 3, 2, 1); ``mlp``
            for other observations; or ``module:function`` of your own. ``auto`` is ``a3c`` for
            images that are large enough for it, else ``mlp``.
        observation_shape: shape of one observation.
        observation_dtype: dtype of observations.
        num_actions: number of logits, ``A``.
        device: device of the parameters.
        observations: two observations, ``[2, ...]``, with which a network of your own is tested.

    Raises:
        ValueError: there is no such network, or it does not fit the observations.
    """
    if ":" in name:
        shapes = observation_shape, observation_dtype, num_actions
        return make_own_model(name, *shapes, device, observations)
    spec, image_shape = _choose(name, "a3c", observation_shape, observation_dtype)
    if spec is None:
        return MLP(observation_shape, num_actions).to(device)
    assert image_shape is not None
    return ImageNetwork(spec, image_shape, num_actions).to(device)


def make_recurrent_model(
    name: str,
    observation_shape: tuple[int, ...],
    observation_dtype: np.dtype[Any],
    num_actions: int,
    device: torch.device = _CPU,
    memory: MemorySpec = PLAIN_LSTM,
) -> RecurrentModel:
    """Return a network for policies with a memory before its heads; ``mlp`` has one for each head.

    Args:
        name: name of the network, as in `make_model`, without ``module:function``.
        observation_shape: shape of one observation.
        observation_dtype: dtype of observations.
        num_actions: number of logits, ``A``.
        device: device of the parameters.
        memory: kind of memory.

    Raises:
        ValueError: there is no such network, or it does not fit the observations.
    """
    _check_own_heads(name)
    spec, image_shape = _choose(name, "a3c", observation_shape, observation_dtype)
    if spec is None:
        return RecurrentMLP(observation_shape, num_actions, memory).to(device)
    assert image_shape is not None
    network = ImageNetwork(spec, image_shape, num_actions)
    return SharedRecurrentModel(network, memory).to(device)


def make_q_model(
    name: str,
    observation_shape: tuple[int, ...],
    observation_dtype: np.dtype[Any],
    num_actions: int,
    num_atoms: int = 1,
    is_dueling: bool = False,
    device: torch.device = _CPU,
    observations: NDArray[Any] | None = None,
) -> QModel:
    """Return a network for Q-learning, with fresh parameters from torch's global generator.

    Args:
        name: name of the network, as in `make_model`, or ``pqn``, which has layer normalization.
            ``auto`` is ``dqn`` for images that are large enough for it, else ``mlp``.
        observation_shape: shape of one observation.
        observation_dtype: dtype of observations.
        num_actions: number of actions, ``A``.
        num_atoms: number of atoms, ``K``; 1: values only.
        is_dueling: whether value and advantages have separate streams.
        device: device of the parameters.
        observations: two observations, ``[2, ...]``, with which a network of your own is tested.

    Raises:
        ValueError: there is no such network, or it does not fit the observations.
    """
    if ":" in name:
        shapes = observation_shape, observation_dtype, num_actions
        return make_own_q_model(name, *shapes, num_atoms, is_dueling, device, observations)
    if name == "pqn":
        if is_dueling:
            raise ValueError(
                "model=pqn has one stream, and dueling=true needs two; use dueling=false, or "
                "another model"
            )
        trunk = _make_normalized_trunk(observation_shape, observation_dtype)
        return NormalizedQNetwork(trunk, num_actions, num_atoms).to(device)
    spec, image_shape = _choose(name, "dqn", observation_shape, observation_dtype)
    if spec is None:
        return MLPQNetwork(observation_shape, num_actions, num_atoms, is_dueling).to(device)
    assert image_shape is not None
    return ImageQNetwork(spec, image_shape, num_actions, num_atoms, is_dueling).to(device)


def make_recurrent_q_model(
    name: str,
    observation_shape: tuple[int, ...],
    observation_dtype: np.dtype[Any],
    num_actions: int,
    num_atoms: int = 1,
    is_dueling: bool = False,
    device: torch.device = _CPU,
    memory: MemorySpec = PLAIN_LSTM,
) -> RecurrentQModel:
    """Return a network for Q-learning with a memory.

    Args:
        name: name of the network, as in `make_q_model`, without ``module:function``.
        observation_shape: shape of one observation.
        observation_dtype: dtype of observations.
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
        trunk = _make_normalized_trunk(observation_shape, observation_dtype)
        width = min(trunk.num_features, LSTM_WIDTH)
        stream = partial(q_output, width)
        outputs = num_actions, num_atoms, is_dueling, memory
        return RecurrentQNetwork(trunk, trunk.num_features, width, stream, *outputs).to(device)
    spec, image_shape = _choose(name, "dqn", observation_shape, observation_dtype)
    outputs = num_actions, num_atoms, is_dueling, memory
    if spec is None:
        return make_recurrent_mlp_q_network(observation_shape, *outputs).to(device)
    assert image_shape is not None
    return make_recurrent_image_q_network(spec, image_shape, *outputs).to(device)


def fits_images(
    name: str, observation_shape: tuple[int, ...], observation_dtype: np.dtype[Any]
) -> bool:
    """Whether observations are images that are large enough for the network ``name``."""
    image_shape = _image_shape(observation_shape, observation_dtype)
    spec = _IMAGE_SPECS[name]
    return image_shape is not None and min(spec.feature_shape(*image_shape[1:])) >= 1


def _make_normalized_trunk(
    observation_shape: tuple[int, ...], observation_dtype: np.dtype[Any]
) -> NormalizedTrunk:
    image_shape = _image_shape(observation_shape, observation_dtype)
    if image_shape is not None:
        refuse_channels_last(image_shape)
        for spec in (PQN_NET, PQN_MINATAR_NET):
            if min(spec.feature_shape(*image_shape[1:])) >= 1:
                return NormalizedImageTrunk(spec, image_shape)
    return NormalizedMLPTrunk(observation_shape)


def _check_own_heads(name: str) -> None:
    if ":" in name:
        raise ValueError(
            f"lstm=true and gru=true put a memory before the heads of the networks that come with "
            f"accel_rl, and model={name} has heads of its own; leave them out, or use another model"
        )


def _choose(
    name: str, automatic: str, observation_shape: tuple[int, ...], observation_dtype: np.dtype[Any]
) -> tuple[ImageSpec | None, tuple[int, int, int] | None]:
    """The layers that ``name`` stands for and the shape of the images; no layers for ``mlp``."""
    if name not in MODEL_NAMES:
        raise ValueError(
            f"model is {name!r}; it must be one of {', '.join(MODEL_NAMES)}, or module:function"
        )
    if name == "pqn":
        raise ValueError(
            "model=pqn is a network for Q-learning, and this algorithm needs one with a policy; "
            "use model=auto, or another model"
        )
    image_shape = _image_shape(observation_shape, observation_dtype)
    if name == "auto":
        if image_shape is not None:
            refuse_channels_last(image_shape)
        fits = fits_images(automatic, observation_shape, observation_dtype)
        name = automatic if fits else "mlp"
    if name == "mlp":
        return None, None
    if image_shape is None:
        raise ValueError(
            f"model={name} needs images, uint8 of shape [channels, height, width]; observations "
            f"are {observation_dtype} of shape {list(observation_shape)}; use model=mlp or auto"
        )
    return _IMAGE_SPECS[name], image_shape


def _image_shape(
    observation_shape: tuple[int, ...], observation_dtype: np.dtype[Any]
) -> tuple[int, int, int] | None:
    if observation_dtype != np.uint8 or len(observation_shape) != 3:
        return None
    channels, height, width = observation_shape
    return channels, height, width
