"""Networks for Q-learning without a target network: layer normalization after every layer.

Gallici et al. 2024 (arXiv:2407.04811) show that layer normalization keeps such learning stable.
The layers and initial weights are those of CleanRL's ``pqn.py`` and ``pqn_atari_envpool.py``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod, sqrt
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from accel_rl.models.dense import Dense
from accel_rl.models.image import MINATAR_NET, NATURE_NET, ImageSpec, Picture, flattened, make_convs
from accel_rl.models.mlp import linear
from accel_rl.models.q_value import QHead, QModel
from accel_rl.models.soft import flat

PQN_NET = replace(NATURE_NET, name="pqn")
"""The convolutions of Mnih et al. 2015 and its hidden layer. The heads are not used."""

PQN_MINATAR_NET = replace(PQN_NET, convs=MINATAR_NET.convs, hidden=MINATAR_NET.hidden)
"""For images that are too small for these, as the paper has it for MinAtar."""

WIDTHS = 120, 84
"""units of the layers for observations that are not images"""

LSTM_WIDTH = 128
"""cells of the LSTM behind these layers, at most as many as the layers give, as in CleanRL's
``pqn_atari_envpool_lstm.py``"""

q_output = partial(linear, gain=sqrt(2))
"""Makes the last layer, of as many inputs and outputs as it is given."""


class NormalizedImageTrunk(nn.Module):
    """Convolutions and a fully connected layer, each normalized before its ReLU.

    A feature map is normalized as a whole, over channels, rows and columns.
    """

    def __init__(self, spec: ImageSpec, picture: Picture) -> None:
        super().__init__()
        self.convs, map_size = make_convs(spec, picture)
        norms = []
        for number, conv in enumerate(spec.convs, 1):
            so_far = replace(spec, convs=spec.convs[:number])
            norms.append(
                _MapNorm((*so_far.feature_shape(picture.height, picture.width), conv.channels))
            )
        self.conv_norms = nn.Sequential(*norms)
        self.hidden = nn.Linear(map_size, spec.hidden)
        spec.hidden_init(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        self.norm = nn.LayerNorm(spec.hidden)
        self.num_features = spec.hidden

    def forward(self, observation: Tensor) -> Tensor:
        x = observation
        for conv, norm in zip(self.convs, self.conv_norms, strict=True):
            x = F.relu_(norm(conv(x)))
        return F.relu_(self.norm(self.hidden(flattened(x))))


class NormalizedMLPTrunk(nn.Module):
    """Two layers, of 120 and 84 units, each normalized before its ReLU."""

    def __init__(self, observation_shape: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        num_inputs = prod(observation_shape)
        for width in WIDTHS:
            layers += [linear(num_inputs, width, gain=sqrt(2)), nn.LayerNorm(width), nn.ReLU()]
            num_inputs = width
        self.layers = Dense(*layers)
        self.num_features = num_inputs

    def forward(self, observation: Tensor) -> Tensor:
        output: Tensor = self.layers(flat(observation))
        return output


class NormalizedQNetwork(QModel):
    """A trunk with layer normalization and a linear layer."""

    def __init__(self, trunk: Any, head: QHead) -> None:
        super().__init__()
        if head != QHead(head.num_actions, head.num_atoms):
            raise ValueError(
                "model=pqn has one stream of plain layers, and dueling=true, noisy=true and "
                "quantiles=implicit need others; leave them out, or use another model"
            )
        self.trunk = trunk
        self.output = q_output(trunk.num_features, head.num_actions * head.num_atoms)
        self._output_shape = head.num_actions, head.num_atoms

    def forward(self, observation: Tensor) -> Tensor:
        output: Tensor = self.output(self.trunk(observation))
        return output.view(-1, *self._output_shape)


class _MapNorm(nn.LayerNorm):
    """Layer normalization of feature maps ``[N, C, H, W]``, whose memory is channels last.

    Its weights are ``[H, W, C]``, as the maps lie in memory.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
