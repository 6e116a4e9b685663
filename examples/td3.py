"""TD3 (Fujimoto et al. 2018, arXiv:1802.09477), whose policy learns in every update.

    accel_rl train algo=examples.td3:make env=Pendulum-v1 num_workers=0 total_steps=20000

After this run the mean return in evaluations was -133 (seed 1, 20 episodes); random actions get
about -1,200. ``docs/your_algorithm.md`` explains the parts.
"""

import copy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.func import functional_call

from accel_rl.agents import BoundedAgent
from accel_rl.algos import ReplayConfig, ReplayLearner, masked_shares
from accel_rl.config import TrainConfig
from accel_rl.models import TwinCritics, flat
from accel_rl.parallel import Adam
from accel_rl.samplers import SamplerConfig
from accel_rl.spaces import size_of


@dataclass(frozen=True, kw_only=True)
class TD3Config(ReplayConfig):
    lr: float = 1e-3
    """Learning rate."""
    noise: float = 0.1
    """Deviation of actions in training; without it they lie between -1 and 1."""
    tau: float = 0.005
    """Share by which the target networks move towards the networks in each update."""

    rule = Adam(eps=1e-8)

    def make_agent(self, network):
        env = network.env
        env.check_bounded("TD3Config")  # floats between bounds, and no images
        network.check_given("TD3Config", "auto")  # no model=... of other algorithms
        model = Networks(size_of(env.observation), size_of(env.action)).to(network.device)
        noisy = partial(explore, scale=self.noise)
        return BoundedAgent(model, env.action, noisy, decide, network.graphs)

    def evaluating(self, agent):
        return agent.greedy()

    def make_learner(self, agent, sync, task):
        return TD3(agent, self, sync, task)


class Networks(nn.Module):
    def __init__(self, num_inputs, num_actions):
        super().__init__()
        sizes = (num_inputs, 256, 256)
        hidden = [m for n, k in pairwise(sizes) for m in (nn.Linear(n, k), nn.ReLU())]
        self.actor = nn.Sequential(*hidden, nn.Linear(256, num_actions), nn.Tanh())
        self.critics = TwinCritics(num_inputs + num_actions)  # values [2, N]


def decide(model, observation):
    return model.actor(observation)  # [N, D] between -1 and 1


def explore(model, observation, noise, scale):
    return (model.actor(observation) + scale * noise).clamp(-1, 1)


class TD3(ReplayLearner):
    metrics = ("critic_loss", "actor_loss")

    def __init__(self, agent, config, sync, task):
        super().__init__(agent, config, sync, task)
        self.target = copy.deepcopy(agent.model).requires_grad_(False)
        self.adjust()

    def get_state(self):
        target = {name: each.clone() for name, each in self.target.state_dict().items()}
        return {"target": target, **super().get_state()}

    def set_state(self, state):
        super().set_state(state)
        self.target.load_state_dict(state["target"])
        self.adjust()

    def adjust(self):
        self.agent.is_random = self.pace.awaits_first

    def learn(self, progress):
        noise = self.noise(self.batch_size, self.agent.num_actions)
        self.optimizer.minimize(self.loss, self.draw(), noise, lr=self.learning_rate(progress))
        with torch.no_grad():
            for old, new in zip(
                self.target.parameters(), self.agent.model.parameters(), strict=True
            ):
                old.lerp_(new, self.config.tau)

    def loss(self, batch, noise):
        model, noise = self.agent.model, (0.2 * noise).clamp(-0.5, 0.5)
        seen, behind = flat(batch.observation), flat(batch.next_observation)
        action = self.agent.unit(batch.action)  # [N, D] between -1 and 1
        with self.autocast():
            with torch.no_grad():
                next_action = (self.target.actor(behind) + noise).clamp(-1, 1)
                next_value = self.target.critics(torch.cat((behind, next_action), 1))  # [2, N]
                goal = batch.reward + batch.discount * next_value.amin(0)
            value = model.critics(torch.cat((seen, action), 1))
            # The loss of the actor must not change the critics: it gets constants in their place.
            constants = {name: each.detach() for name, each in model.critics.named_parameters()}
            pairs = torch.cat((seen, model.actor(seen)), 1)
            judged = functional_call(model.critics, constants, pairs)[0]
        critic_loss = masked_shares((value - goal).square().sum(0), batch.valid)
        actor_loss = masked_shares(-judged.float(), batch.valid)
        metrics = {"critic_loss": critic_loss.sum(), "actor_loss": actor_loss.sum()}
        return critic_loss + actor_loss, metrics


def make():
    learner = TD3Config(
        batch_size=64, training_intensity=32, learning_starts=500, buffer_size=50000
    )
    return TrainConfig(sampler=SamplerConfig(num_envs=8, horizon=2), learner=learner)
