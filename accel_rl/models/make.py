"""Networks by name."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch
from torch import nn

from accel_rl.models.dense import Dense
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
    q_output,
)
from accel_rl.models.memory import MemorySpec, WithMemory
from accel_rl.models.mlp import HIDDEN, MLP, FlatNumbers, RecurrentMLP, hidden_layers, linear
from accel_rl.models.own import make_own_model
from accel_rl.models.q_value import (
    Convolutions,
    ImageQNetwork,
    ImageStream,
    MLPQNetwork,
    QHead,
    QHeads,
)
from accel_rl.models.residual import BTR_NET, IMPALA_NET
from accel_rl.spaces import Leaf, Space, describe

_IMAGE_SPECS = {
    spec.name: spec
    for spec in (
        *(A3C_NET, DQN_NET, NATURE_NET, NIPS_NET, IMPALA_NET, BTR_NET, MINATAR_NET),
        *(PAAC_NATURE_NET, *GA3C_LARGE_NETS),
    )
}

MODEL_NAMES = ("auto", *_IMAGE_SPECS, "mlp", "pqn")

_CPU = torch.device("cpu")


def make_model(
    name: str,
    observation: Space,
    head: int | QHead,
    memory: MemorySpec | None = None,
    device: torch.device = _CPU,
    observations: Any = None,
) -> Any:
    """Return a network with fresh parameters from torch's global generator.

    Args:
        name: ``auto``; for pictures ``a3c``, ``dqn``, ``nature``, ``nips``, ``impala``,
            ``btr``, ``minatar``, ``paac_nature`` or ``ga3c_large_stride4`` (or 3, 2, 1); ``mlp``
            for other observations; ``pqn``, which has layer normalization, for Q-learning; or
            ``module:function`` of your own. For pictures that are large enough for it ``auto`` is
            ``a3c``, and ``dqn`` for Q-learning, else ``mlp``; of a mapping it joins networks for
            each leaf.
        observation: the space of observations.
        head: number of logits of a policy, ``A``; or a `QHead`.
        memory: kind of memory before the heads, of which a policy of ``mlp`` has two. None: none.
        device: device of the parameters.
        observations: two observations, ``[2, ...]``, with which a network of your own is tested.

    Returns:
        A `PolicyValueModel` or a `QModel`; with ``memory`` a `RecurrentModel` that gives the same.

    Raises:
        ValueError: there is no such network, or it does not fit the observations.
    """
    if ":" in name:
        return make_own_model(name, observation, head, memory, device, observations)
    if memory is not None and not isinstance(observation, Leaf):
        raise ValueError(
            f"a memory needs observations that are one array, and these are "
            f"{describe(observation)}; leave memory out, or join them in the environment"
        )
    if not isinstance(observation, Leaf):
        if name not in ("auto", "mlp"):
            raise ValueError(
                f"model={name} is for one picture, and observations are {describe(observation)}; "
                f"use model=auto, which joins them, or module:function"
            )
        assert not isinstance(head, QHead), "`check_plain` comes first"
        return JoinedNetwork(observation, head).to(device)
    if isinstance(head, QHead):
        return _make_q_model(name, observation, head, memory).to(device)
    spec, picture = _choose(name, "a3c", observation)
    if spec is None or picture is None:
        sizes = observation.shape, head
        mlp = MLP(*sizes) if memory is None else RecurrentMLP(*sizes, memory)
        return mlp.to(device)
    network = ImageNetwork(spec, picture, head)
    if memory is not None:
        return WithMemory(network, network.width, memory).to(device)
    return network.to(device)


def _make_q_model(
    name: str, observation: Leaf, head: QHead, memory: MemorySpec | None
) -> nn.Module:
    trunk: Any
    if name == "pqn":
        picture = picture_of(observation)
        specs = [each for each in (PQN_NET, PQN_MINATAR_NET) if each.fits(picture)]
        if picture is None or not specs:
            trunk = NormalizedMLPTrunk(observation.shape)
        else:
            trunk = NormalizedImageTrunk(specs[0], picture)
        if memory is None:
            return NormalizedQNetwork(trunk, head)
        width = min(trunk.num_features, LSTM_WIDTH)
        stream: Any = partial(q_output, width)
    else:
        spec, picture = _choose(name, "dqn", observation)
        if spec is None or picture is None:
            if memory is None:
                return MLPQNetwork(observation.shape, head)
            trunk = Dense(FlatNumbers(), *hidden_layers(prod(observation.shape)))
            trunk.num_features = width = HIDDEN
            stream = partial(linear, width, gain=0.01)
        elif memory is None:
            return ImageQNetwork(spec, picture, head)
        else:
            trunk, width = Convolutions(spec, picture), spec.hidden
            stream = partial(ImageStream, spec, width)
    return WithMemory(trunk, trunk.num_features, memory, width, partial(QHeads, stream, head))


def fits_images(name: str, observation: Leaf) -> bool:
    """Whether observations are pictures that are large enough for the network ``name``, if it is
    one for pictures."""
    return name not in _IMAGE_SPECS or _IMAGE_SPECS[name].fits(picture_of(observation))


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
