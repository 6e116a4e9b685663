"""Agents that remember, how they collect rollouts, and their network step by step."""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from accel_rl.agents import PolicyAgent, RolloutTensors
from accel_rl.models import MemorySpec, PreviousInputs, RecurrentModel, make_model
from accel_rl.models.memory import LSTM, WithMemory
from accel_rl.models.policy_value import SharedNetwork
from accel_rl.samplers import ActionServer, SamplerConfig
from accel_rl.spaces import Leaf, discrete

CPU = torch.device("cpu")
T, B = 7, 4
Policy = Literal["immediate", "wait"]


class SmallShared(SharedNetwork):
    """One layer for both heads, as networks for images have several."""

    width = 16

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(3, self.width)
        self.policy, self.value = nn.Linear(self.width, 4), nn.Linear(self.width, 1)

    def features(self, observation: Tensor) -> Tensor:
        x: Tensor = self.hidden(observation.float()).tanh()
        return x


def make_agent(*, is_shared: bool = False, is_told: bool = False) -> PolicyAgent:
    """Its weights are large enough for actions to tell what is remembered."""
    torch.manual_seed(0)
    memory = MemorySpec("lstm", PreviousInputs(discrete(4)) if is_told else None)
    model: RecurrentModel = make_model("mlp", Leaf((3,), np.dtype(np.int64)), 4, memory)
    if is_shared:
        model = WithMemory(SmallShared(), SmallShared.width, memory)
    for name, parameter in model.named_parameters():
        parameter.data.mul_(100 if name == "policy.heads.weight" else 3)  # it begins with 0.01
    return PolicyAgent(model)


def config(reset_policy: Policy = "immediate", **options: Any) -> SamplerConfig:
    options = {"num_envs": B, "horizon": T, **options}
    return SamplerConfig(reset_policy=reset_policy, **options)


def copies(batch: RolloutTensors) -> RolloutTensors:
    return batch.map(torch.clone)


def collect(
    sampler: Any, number: int = 6, agent: PolicyAgent | None = None
) -> list[RolloutTensors]:
    server, batches = ActionServer(agent or make_agent(), sampler, CPU), []
    with sampler:
        for _ in range(number):
            sampler.collect(server)
            batches.append(copies(server.finish()))
    return batches


def plain_steps(lstm: LSTM, x: Tensor, state: Tensor, is_first: Tensor) -> Tensor:
    """Outputs by operations that autograd knows."""
    output, cell = state.chunk(2, 1)
    outputs = []
    for row, begin in zip(x.view(*is_first.shape, -1), is_first, strict=True):
        keep = (~begin).unsqueeze(1)
        gates = lstm.input(row) + lstm.recurrent(output * keep)
        i, f, o, g = gates.chunk(4, 1)
        cell = f.sigmoid() * cell * keep + i.sigmoid() * g.tanh()
        output = o.sigmoid() * cell.tanh()
        outputs.append(output)
    return torch.cat(outputs)
