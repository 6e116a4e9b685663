"""A2C and PPO with action masks, against networks that get the mask as numbers and apply it."""

from typing import Any

import numpy as np
import pytest
import torch
from made_rollouts import acted, learner_of, made_rollout, task_of
from torch import Tensor

from accel_rl.agents import PolicyAgent, RolloutTensors
from accel_rl.algos import A2C, PPO, A2CConfig, PPOConfig
from accel_rl.models import (
    MemorySpec,
    PolicyValue,
    PolicyValueModel,
    RecurrentModel,
    Sequences,
    make_model,
    one_step,
)
from accel_rl.parallel import FlatParameters
from accel_rl.spaces import Leaf, map_leaves

pytestmark = pytest.mark.numeric

T, B, A = 6, 4, 5
ALL = slice(None)
VECTORS = Leaf((3,), np.dtype(np.float32))
LOWEST = torch.finfo(torch.float32).min


def masked_by_hand(output: PolicyValue, mask: Tensor) -> PolicyValue:
    return PolicyValue(torch.where(mask > 0, output.logits, LOWEST), output.value)


class Within(PolicyValueModel):
    """Observations are three numbers, and behind them the mask."""

    def __init__(self, inner: PolicyValueModel) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, observation: Tensor) -> PolicyValue:
        return masked_by_hand(self.inner(observation[:, :3]), observation[:, 3:])


class RecurrentWithin(RecurrentModel):
    def __init__(self, inner: RecurrentModel) -> None:
        super().__init__()
        self.inner, self.state_size = inner, inner.state_size

    def forward(self, observation: Tensor, sequences: Sequences) -> tuple[PolicyValue, Tensor]:
        output, state = self.inner(observation[:, :3], sequences)
        return masked_by_hand(output, observation[:, 3:]), state


def agents(is_recurrent: bool) -> tuple[Any, Any]:
    """One that gets masks, and the slow one; of the same parameters."""
    made: Any = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(make_model("mlp", VECTORS, A, MemorySpec() if is_recurrent else None))
    if is_recurrent:
        return PolicyAgent(made[0]), PolicyAgent(RecurrentWithin(made[1]))
    return PolicyAgent(made[0]), PolicyAgent(Within(made[1]))


def batches(num: int, state_size: int = 0) -> list[RolloutTensors]:
    """Random rollouts with allowed actions, two truncations, a termination and a lost step."""
    g = torch.Generator().manual_seed(0)

    def observations(*rows: int) -> dict[str, Tensor]:
        mask = torch.rand(*rows, A, generator=g) < 0.5
        mask.scatter_(-1, torch.randint(0, A, (*rows, 1), generator=g), True)
        seen = torch.randn(*rows, 3, generator=g)
        return {"observation": seen, "action_mask": mask.to(torch.int8)}

    made = []
    for _ in range(num):
        observation: Any = observations(T + 1, B)
        final: Any = observations(2)
        final["action_mask"][1] = 0  # nothing more is possible
        mask = observation["action_mask"][:T]
        action = torch.multinomial(mask.flatten(0, 1).float(), 1, generator=g).view(T, B)
        flags = torch.zeros(3, T, B, dtype=torch.bool)
        flags[0, 3, 0] = flags[1, 2, 1] = flags[1, 4, 3] = flags[2, 1, 2] = True
        state = torch.randn(T + 1, B, state_size, generator=g) if state_size else None
        made.append(
            made_rollout(
                observation,
                action,
                torch.randn(T, B, generator=g),
                terminated=flags[0],
                truncated=flags[1],
                valid=~flags[2],
                final_observation=final,
                final_step=torch.tensor([2, 4]),
                final_env=torch.tensor([1, 3]),
                recurrent_state=state,
            )
        )
    return made


def joined(tree: Any) -> Tensor:
    return torch.cat((tree["observation"], tree["action_mask"].float()), -1)


def make_learner(kind: str, agent: Any, **options: Any) -> tuple[A2C | PPO, FlatParameters]:
    config: Any = A2CConfig(lr=1e-3, gae_lambda=0.9, **options)
    if kind == "ppo":
        config = PPOConfig(lr=1e-3, minibatch_size=2 * T, epochs=2, **options)
    learner = learner_of(config, agent, task_of(T, B))
    return learner, learner.sync.parameters


@pytest.mark.parametrize("is_recurrent", [False, True], ids=["plain", "recurrent"])
@pytest.mark.parametrize("kind", ["a2c", "ppo"])
def test_updates_are_those_of_a_network_that_masks_by_itself(kind: str, is_recurrent: bool) -> None:
    ours, slow = agents(is_recurrent)
    size = ours.model.state_size if is_recurrent else 0
    (learner, flat), (other, other_flat) = make_learner(kind, ours), make_learner(kind, slow)
    before = flat.parameter.clone()
    for batch in batches(4, size):
        plain = batch._replace(
            observation=joined(batch.observation), final_observation=joined(batch.final_observation)
        )
        found = learner.update(acted(ours, batch), 0.0)
        expected = other.update(acted(slow, plain), 0.0)
        for name, each in expected.items():
            torch.testing.assert_close(found[name], each, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(flat.parameter, other_flat.parameter, rtol=1e-5, atol=1e-6)
    assert flat.parameter.isfinite().all() and (flat.parameter - before).abs().max() > 1e-4


@pytest.mark.parametrize("is_recurrent", [False, True], ids=["plain", "recurrent"])
@pytest.mark.parametrize("kind", ["a2c", "ppo"])
def test_updates_in_bfloat16_are_near_those_in_float32(kind: str, is_recurrent: bool) -> None:
    found = []
    for precision in ("float32", "bfloat16"):
        agent, _ = agents(is_recurrent)
        learner, _ = make_learner(kind, agent, precision=precision)
        size = agent.model.state_size if is_recurrent else 0
        found.append([learner.update(acted(agent, each), 0.0) for each in batches(2, size)])
    for plain, short in zip(*found, strict=True):
        assert short["entropy"].item() == pytest.approx(plain["entropy"].item(), rel=0.05)
        assert short["value_loss"].item() == pytest.approx(plain["value_loss"].item(), rel=0.1)


def test_recurrent_agent_draws_what_its_masked_softmax_says() -> None:
    """`evaluate` is the distribution that `act` draws from, and the best of it is greedy."""
    agent, _ = agents(is_recurrent=True)
    with torch.no_grad():
        for each in agent.model.parameters():
            each.normal_(std=0.5)
    (batch,) = batches(1)
    rows: Any = map_leaves(lambda leaf: leaf[0], batch.observation)
    state = torch.randn(B, agent.model.state_size)
    is_first = torch.zeros(1, B, dtype=torch.bool)
    output = agent.evaluate(rows, Sequences(state, is_first))
    mask = rows["action_mask"] > 0
    plain, expected_after = agent.model(rows["observation"], Sequences(state, is_first))
    torch.testing.assert_close(output.value, plain.value)
    weight = plain.logits.double().exp() * mask
    probability = weight / weight.sum(1, keepdim=True)
    torch.testing.assert_close(output.logits.double().softmax(1), probability, atol=1e-6, rtol=0)
    noise = (torch.arange(2_000, dtype=torch.float64) + 0.5) / 2_000
    for b in range(B):
        seen = map_leaves(lambda leaf: leaf[b : b + 1].expand(2_000, *leaf.shape[1:]), rows)  # noqa: B023
        action, after = agent.act(seen, noise, ALL, one_step(state[b].expand(2_000, -1), None))
        share = torch.bincount(action, minlength=A) / 2_000
        torch.testing.assert_close(share.double(), probability[b].detach(), atol=1e-3, rtol=0)
        torch.testing.assert_close(after[0], expected_after[b], atol=1e-6, rtol=1e-5)
    greedy, _ = agent.greedy().act(
        rows, torch.zeros(B, dtype=torch.float64), ALL, one_step(state, None)
    )
    assert greedy.tolist() == probability.argmax(1).tolist()
    assert (plain.logits.argmax(1) != greedy).any()
