"""Updates of learners that share them, each with its part of the same batches.

Run by `test_parallel_all_reduce.py`, alone, in threads, and in several processes, with torchrun's
variables: ``python learners_in_step.py OUT``. All in float64, so that nothing but the order of sums
differs.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from made_rollouts import acted
from torch import Tensor, nn

from accel_rl.agents import PolicyAgent, QAgent, RolloutTensors
from accel_rl.algos import (
    A2C,
    DQN,
    PPO,
    PQN,
    A2CConfig,
    DQNConfig,
    LearnerSpec,
    PPOConfig,
    PQNConfig,
)
from accel_rl.envs import EnvSpec
from accel_rl.models import PolicyValue, PolicyValueModel
from accel_rl.models.memory import WithMemory
from accel_rl.models.q_value import QHead, QHeads, QModel, num_random
from accel_rl.parallel import (
    AllReduce,
    FlatParameters,
    GradientSync,
    Group,
    Local,
    Ranks,
    Team,
    meet_by_store,
    read_ranks,
)
from accel_rl.spaces import Leaf, discrete

T, B, NUM_ACTIONS, NUM_ATOMS = 4, 8, 3, 5
Make = Callable[[nn.Module, Any], GradientSync]
MEASURED: Any = {"log_norms": True}
NORMALIZED: Any = {"normalize_observation": True, "normalize_reward": True}


class Network(PolicyValueModel):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(3, 7)
        self.heads = nn.Linear(7, NUM_ACTIONS + 1)

    def forward(self, observation: Tensor) -> PolicyValue:
        observation = observation.to(self.hidden.weight.dtype)  # normalized, it is float32
        heads = self.heads(self.hidden(observation).tanh())
        return PolicyValue(heads[:, :-1], heads[:, -1])


class QNetwork(QModel):
    def __init__(self, num_atoms: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, NUM_ACTIONS * num_atoms)
        self._num_atoms = num_atoms

    def forward(self, observation: Tensor) -> Tensor:
        return self.layer(observation).tanh().view(-1, NUM_ACTIONS, self._num_atoms)


def rollouts(rank: int, size: int) -> list[RolloutTensors]:
    """Three of ``[T, B]``, cut to the columns of one learner; their masks are very uneven."""
    g = torch.Generator().manual_seed(0)
    own = slice(rank * B // size, (rank + 1) * B // size)
    found = []
    for _ in range(3):
        valid = torch.rand(T, B, generator=g) < torch.linspace(0.2, 1.0, B)
        truncated = torch.rand(T, B, generator=g) < 0.2
        terminated = (torch.rand(T, B, generator=g) < 0.2) & ~truncated
        observation = torch.randn(T + 1, B, 3, generator=g, dtype=torch.float64)
        final = torch.randn(T, B, 3, generator=g, dtype=torch.float64)[:, own]
        step, env = truncated[:, own].nonzero(as_tuple=True)
        action = torch.randint(NUM_ACTIONS, (T, B), generator=g)
        reward = torch.randn(T, B, generator=g, dtype=torch.float64)
        fields = (action, reward, terminated, truncated, valid)
        cut = (field[:, own].contiguous() for field in (observation, *fields))
        found.append(RolloutTensors(*cut, final[step, env], step, env))
    return found


def task(rank: int, size: int) -> LearnerSpec:
    observation = Leaf((3,), np.dtype(np.float64))
    spec = EnvSpec(name="made up", observation=observation, action=discrete(NUM_ACTIONS))
    return LearnerSpec(spec, B // size, T, rank, Ranks(rank, size, rank, size))


def policy_gradient(
    learner_type: Any, config: Any, rank: int, size: int, sync_of: Make, tells: bool = False
) -> Tensor:
    """``tells``: another policy has acted, whose probabilities are told."""
    model = Network().double()
    agent = PolicyAgent(model)
    learner = learner_type(agent, config, sync_of(model, config), task(rank, size))
    batches, g = rollouts(rank, size), torch.Generator().manual_seed(1)
    if learner_type is PPO:
        batches = [acted(agent, batch) for batch in batches]
    if tells:
        drawn = [torch.rand(T, B, generator=g, dtype=torch.float64).log() for _ in batches]
        own = slice(rank * B // size, (rank + 1) * B // size)
        batches = [x._replace(log_prob=y[:, own]) for x, y in zip(batches, drawn, strict=True)]
    return train(learner, batches)


def normalized(learner_type: Any, config: Any, rank: int, size: int, sync_of: Make) -> Tensor:
    """Parameters and moments at the end; the rollouts have means and deviations of their own."""
    model = Network().double()
    agent = PolicyAgent(model)
    learner = learner_type(agent, config, sync_of(model, config), task(rank, size))
    for number, batch in enumerate(rollouts(rank, size)):
        shifted = batch.observation * (number + 2) + 5
        batch = batch._replace(
            observation=shifted,
            reward=batch.reward * 7,
            final_observation=batch.final_observation + 5,
            normalizer=agent.normalizer,
        )
        learner.update(acted(agent, batch), 0.1 * number)
    state = learner.get_state()
    moments = {**state["observation_moments"], "reward": state["reward_moments"]}
    numbers = [each.flatten() for name in moments for each in moments[name].values()]
    return torch.cat((learner.sync.parameters.parameter.detach(), *numbers))


def q_learning(rank: int, size: int, sync_of: Make, num_atoms: int, **options: Any) -> Tensor:
    length = options.get("sequence_length")
    config = DQNConfig(
        batch_size=16 if length is None else 32,
        learning_starts=T * B * (2 if length is None else 3),
        buffer_size=T * B * 4,
        target_update_interval=T * B,
        prioritized=True,
        num_atoms=num_atoms,
        **MEASURED,
        **options,
    )
    support = None if num_atoms == 1 else torch.linspace(-10, 10, num_atoms, dtype=torch.float64)
    agent: Any
    batches = rollouts(rank, size) * 2
    if "quantiles" in options:
        heads = QHeads(partial(nn.Linear, 3), QHead(NUM_ACTIONS, num_atoms, True, True, True))
        agent = QAgent(heads.double(), None, torch.tensor([0.5]))
    elif length is None:
        agent = QAgent(QNetwork(num_atoms).double(), support, torch.tensor([0.5]))
    else:
        layers = nn.Sequential(nn.Linear(3, 7), nn.Tanh())
        heads = partial(QHeads, partial(nn.Linear, 5), QHead(NUM_ACTIONS, num_atoms, True))
        network = WithMemory(layers, 7, width=5, make_heads=heads).double()
        agent = QAgent(network, support, torch.tensor([0.5]))
        state = torch.randn(T + 1, B, 10, generator=torch.Generator().manual_seed(2))
        own = state[:, rank * B // size : (rank + 1) * B // size]
        batches = [batch._replace(recurrent_state=own) for batch in batches]
    sync = sync_of(agent.model, config)
    learner = DQN(agent, config, sync, task(rank, size)._replace(seed=0))
    g = torch.Generator().manual_seed(1)

    def draw(num: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Two draws of each environment, the same whoever has it, at very uneven probabilities."""
        step = torch.randint(learner.replay.low, learner.replay.high, (2, B), generator=g)
        probability = torch.rand(2, B, generator=g, dtype=torch.float64) ** 3 + 1e-4
        own = slice(rank * B // size, (rank + 1) * B // size)
        env = torch.arange(B // size).expand(2, -1)
        drawn = (step[:, own].reshape(-1), env.reshape(-1), probability[:, own].reshape(-1))
        assert len(drawn[0]) == num
        return drawn

    def noise(two: int, num: int) -> Tensor:
        """The same noise of layers for all, and levels of the transitions that are drawn."""
        own = slice(rank * B // size, (rank + 1) * B // size)
        fixed = torch.randn(two, num_random(agent.model), generator=g, dtype=torch.float64)
        level = torch.randn(two, 2, B, num_atoms, generator=g, dtype=torch.float64)
        drawn = torch.cat((fixed, level[:, :, own].reshape(two, -1)), 1)
        assert drawn.shape[1] == num
        return drawn

    learner._priorities.draw = draw  # type: ignore[union-attr,method-assign]
    learner.noise = noise  # type: ignore[method-assign,assignment]
    updated = train(learner, batches)
    assert sync.num_updates > 20
    return updated


def pqn(rank: int, size: int, sync_of: Make) -> Tensor:
    config = PQNConfig(minibatch_size=T * B, epochs=4, max_gradient_norm=0.05, lr=0.01, **MEASURED)
    model = QNetwork(num_atoms=1).double()
    agent = QAgent(model, None, torch.tensor([0.5]))
    learner = PQN(agent, config, sync_of(model, config), task(rank, size))
    return train(learner, rollouts(rank, size))


def train(learner: A2C | PPO | PQN | DQN, batches: list[RolloutTensors]) -> Tensor:
    """The parameters at the end, and behind them the gradient cosines."""
    metrics = [learner.update(batch, 0.1 * number) for number, batch in enumerate(batches)]
    cosines = [each["gradient_cosine"] for each in metrics if "gradient_cosine" in each]
    return torch.cat((learner.sync.parameters.parameter, torch.stack(cosines)))


def in_order(n: int, **_: Any) -> Tensor:
    """For `torch.randperm`: every other step is of the same environments whoever has them."""
    return torch.arange(n)


CLIPPED: Any = {"normalize_advantage": True, "max_gradient_norm": 0.05, **MEASURED}
# One minibatch an epoch: which steps a smaller one has depends on each learner's shuffling.
WHOLE: Any = {"minibatch_size": T * B}
SEQUENCES: Any = {"sequence_length": 2, "burn_in": 2}
CASES: dict[str, Callable[..., Tensor]] = {
    "a2c": partial(policy_gradient, A2C, A2CConfig(**CLIPPED, lr=0.01)),
    "vtrace": partial(
        policy_gradient,
        A2C,
        A2CConfig(vtrace=True, max_gradient_norm=0.05, lr=0.01, **MEASURED),
        tells=True,
    ),
    "ppo": partial(policy_gradient, PPO, PPOConfig(**CLIPPED, **WHOLE, clip_value=True)),
    "stopped_ppo": partial(
        policy_gradient, PPO, PPOConfig(**MEASURED, **WHOLE, lr=0.1, epochs=8, target_kl=0.01)
    ),
    "normalized_a2c": partial(normalized, A2C, A2CConfig(**NORMALIZED, lr=0.01)),
    "normalized_ppo": partial(normalized, PPO, PPOConfig(**NORMALIZED, **WHOLE)),
    "dqn": partial(q_learning, num_atoms=1, double=True, max_gradient_norm=0.05),
    "cat_dqn": partial(q_learning, num_atoms=NUM_ATOMS, optimizer="adam", n_step=2),
    "munchausen_iqn": partial(
        q_learning, num_atoms=NUM_ATOMS, quantiles="implicit", munchausen=True, noisy=True
    ),
    "recurrent_dqn": partial(q_learning, num_atoms=1, double=True, **SEQUENCES),
    "pqn": pqn,
}


def run(case: str, rank: int, size: int, group: Group | None = None) -> Tensor:
    """What `train` gives."""

    def sync_of(model: nn.Module, config: Any) -> GradientSync:
        arguments = FlatParameters(model), config.rule, config.max_gradient_norm
        generator = torch.Generator().manual_seed(0)  # of this learner's own: there are threads
        for parameter in model.parameters():
            parameter.data.uniform_(-0.5, 0.5, generator=generator)
        return Local(*arguments) if group is None else AllReduce(*arguments, group)

    return CASES[case](rank, size, sync_of)


def main() -> None:
    torch.set_num_threads(1)
    torch.randperm = in_order  # type: ignore[assignment]
    team: Team = meet_by_store(read_ranks(os.environ), 60.0)
    team.open_group()
    found = {case: run(case, team.ranks.rank, team.ranks.size, team.group) for case in CASES}
    torch.save(found, Path(sys.argv[1]) / f"{team.ranks.size}_{team.ranks.rank}.pt")
    team.close()


if __name__ == "__main__":
    main()
