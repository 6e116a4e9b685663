"""PPO as a plain script: EnvPool, PyTorch, one file, no sampler between them.

Stands for the scripts that people write or copy: synchronous environments in C++ threads, images
of 84 x 84, the network of Mnih et al. 2015, our preset's rollout and minibatches, torch's Adam;
observations as uint8, scaled in the network. Runs in any interpreter that has EnvPool and torch,
and needs nothing of ours but `children`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness.children import Advance, read_spec, serve, versions

GAMMA, GAE_LAMBDA, CLIP_RANGE = 0.99, 0.95, 0.1


def main() -> None:
    """Measures the script."""
    serve(*make(read_spec()))


def make(spec: dict[str, Any]) -> tuple[Advance, dict[str, Any]]:
    """``spec`` as `peer_cases` makes it."""
    import envpool
    import torch

    torch.set_num_threads(spec["torch_threads"])
    torch.manual_seed(spec["seed"])
    device = torch.device(spec["device"])
    name = "".join(part.capitalize() for part in spec["game"].split("_")) + "-v5"
    work = spec["work"]
    num_envs, horizon = work["num_envs"], work["horizon"]
    settings = {"num_envs": num_envs, "episodic_life": True, "reward_clip": True}
    envs = envpool.make(name, env_type="gymnasium", seed=spec["seed"], **settings)
    model = _make_model(int(envs.action_space.n)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-4, eps=1e-5)

    def to_device(array: Any) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    steps = (horizon, num_envs)
    observations = torch.zeros((*steps, 4, 84, 84), dtype=torch.uint8, device=device)
    actions = torch.zeros(steps, dtype=torch.int64, device=device)
    log_probs, rewards, values, ends = (torch.zeros(steps, device=device) for _ in range(4))
    observation = to_device(envs.reset()[0])
    ended = torch.zeros(num_envs, device=device)

    def advance() -> int:
        nonlocal observation, ended
        with torch.no_grad():
            for t in range(horizon):
                observations[t], ends[t] = observation, ended
                logits, values[t] = model(observation)
                policy = torch.distributions.Categorical(logits=logits)
                actions[t] = policy.sample()
                log_probs[t] = policy.log_prob(actions[t])
                following, reward, terminated, truncated, _ = envs.step(actions[t].cpu().numpy())
                observation, rewards[t] = to_device(following), to_device(reward)
                ended = to_device(terminated | truncated).float()
            next_value, next_ended = model(observation)[1], ended
            advantages = torch.zeros_like(rewards)
            following_advantage = torch.zeros(num_envs, device=device)
            for t in reversed(range(horizon)):
                delta = rewards[t] + GAMMA * next_value * (1 - next_ended) - values[t]
                following_advantage = (
                    delta + GAMMA * GAE_LAMBDA * (1 - next_ended) * following_advantage
                )
                advantages[t] = following_advantage
                next_value, next_ended = values[t], ends[t]
        batch = [x.flatten(0, 1) for x in (observations, actions, log_probs, advantages)]
        _learn(model, optimizer, work, *batch, (advantages + values).flatten())
        return int(num_envs * horizon)

    return advance, settings | {"versions": versions("envpool", "torch")}


def _learn(
    model: Any,
    optimizer: Any,
    work: dict[str, Any],
    observations: Any,
    actions: Any,
    log_probs: Any,
    advantages: Any,
    returns: Any,
) -> None:
    import torch
    from torch import nn

    for _ in range(work["num_epochs"]):
        for index in torch.randperm(len(actions)).chunk(work["num_minibatches"]):
            logits, value = model(observations[index])
            policy = torch.distributions.Categorical(logits=logits)
            ratio = (policy.log_prob(actions[index]) - log_probs[index]).exp()
            advantage = advantages[index]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            clipped = ratio.clamp(1 - CLIP_RANGE, 1 + CLIP_RANGE)
            policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
            value_loss = 0.5 * (value - returns[index]).square().mean()
            loss = policy_loss + 0.5 * value_loss - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


def _make_model(num_actions: int) -> Any:
    import torch
    from torch import nn

    class Model(nn.Module):
        """Logits ``[N, A]`` and values ``[N]``."""

        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(
                nn.Conv2d(4, 32, 8, 4),
                nn.ReLU(),
                nn.Conv2d(32, 64, 4, 2),
                nn.ReLU(),
                nn.Conv2d(64, 64, 3, 1),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(64 * 7 * 7, 512),
                nn.ReLU(),
            )
            self.policy, self.value = nn.Linear(512, num_actions), nn.Linear(512, 1)

        def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = self.trunk(image / 255.0)
            return self.policy(x), self.value(x).squeeze(1)

    return Model()


if __name__ == "__main__":
    main()
