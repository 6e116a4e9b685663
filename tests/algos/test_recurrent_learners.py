"""A2C and PPO with a recurrent network, against one that is unrolled step by step."""

from typing import Any

import numpy as np
import pytest
import torch
from made_rollouts import acted, learner_of, task_of
from recurrent_play import collect, config, make_agent, plain_steps
from refusals import words
from torch import Tensor
from toy_envs import ToyEnv

from accel_rl.agents import PolicyAgent, RolloutTensors
from accel_rl.algos import A2C, PPO, A2CConfig, PPOConfig
from accel_rl.algos.actor_critic import bootstrap_values
from accel_rl.models import PolicyValue, Sequences
from accel_rl.models.memory import WithMemory
from accel_rl.parallel import GradientSync
from accel_rl.samplers import SerialSampler

pytestmark = pytest.mark.numeric

T, B = 7, 4


class SlowAgent(PolicyAgent):
    """Goes through each environment alone, by operations that autograd knows."""

    def evaluate(self, observation: Tensor, sequences: Sequences | None = None) -> PolicyValue:
        assert sequences is not None
        num_rows, num_envs = sequences.is_first.shape
        rows = observation.view(num_rows, num_envs, *observation.shape[1:])
        alone = [self.unroll(rows[:, b], sequences.of(slice(b, b + 1))) for b in range(num_envs)]
        logits, value = (torch.stack(each, 1).flatten(0, 1) for each in zip(*alone, strict=True))
        return PolicyValue(logits, value)

    def unroll(self, rows: Tensor, sequences: Sequences) -> PolicyValue:
        model: Any = self.model
        state, is_first, previous = sequences

        def told(x: Tensor) -> Tensor:
            return x if previous is None else torch.cat((x, previous[:, 0]), 1)

        if isinstance(model, WithMemory):
            x = plain_steps(model.memory, told(model.network.features(rows)), state, is_first)
            return PolicyValue(model.network.policy(x), model.network.value(x).squeeze(1))
        outputs = []
        for layers, own in zip((model.policy, model.value), state.chunk(2, 1), strict=True):
            x = plain_steps(layers.memory, told(layers.network(rows.float())), own, is_first)
            outputs.append(layers.heads(x))
        return PolicyValue(outputs[0], outputs[1].squeeze(1))


def batches(
    reset_policy: Any = "immediate", agent: PolicyAgent | None = None
) -> list[RolloutTensors]:
    return collect(SerialSampler(ToyEnv, config=config(reset_policy), seed=5), 8, agent)


def make_learner(kind: str, agent: PolicyAgent) -> tuple[A2C | PPO, GradientSync]:
    # Small steps, lest rounding grows.
    config: Any = A2CConfig(lr=1e-4, gae_lambda=0.9)
    if kind != "a2c":
        size = {"ppo": T, "ppo-pairs": 2 * T, "ppo-whole": T * B}[kind]
        config = PPOConfig(lr=1e-4, minibatch_size=size, epochs=2)
    learner = learner_of(config, agent, task_of(T, B))
    return learner, learner.sync


PAIRS = [
    *(("a2c", "immediate", "told"), ("ppo-pairs", "wait", "shared-told")),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            *(("a2c", "wait", "shared"), ("ppo", "immediate", "shared"), ("ppo", "wait", "told")),
            *(("ppo-pairs", "immediate", "apart"), ("ppo-whole", "wait", "apart")),
            ("ppo-whole", "immediate", "shared-told"),
        )
    ),
]


@pytest.mark.parametrize(("kind", "reset_policy", "network"), PAIRS)
def test_update_is_that_of_each_environment_unrolled_alone(
    kind: str, reset_policy: str, network: str
) -> None:
    """Episodes, lives and cut-offs end anywhere in these rollouts."""
    options = {"is_shared": "shared" in network, "is_told": "told" in network}
    found, collected = [], batches(reset_policy, make_agent(**options))[:4]
    for make in (PolicyAgent, SlowAgent):
        agent = make(make_agent(**options).model)
        learner, sync = make_learner(kind, agent)
        before = sync.parameters.parameter.clone()
        metrics = [learner.update(acted(agent, batch), 0.0) for batch in collected]
        moved = sync.parameters.parameter - before
        found.append((moved, metrics))
    (moved, metrics), (expected, slow_metrics) = found
    assert float((moved - expected).norm() / expected.norm()) < 0.01
    for own, slow in zip(metrics, slow_metrics, strict=True):
        for name in own:
            torch.testing.assert_close(own[name], slow[name], rtol=2e-3, atol=2e-4, msg=name)


@pytest.mark.parametrize("is_told", [False, True])
def test_values_beyond_a_rollout_are_of_what_was_remembered_there(is_told: bool) -> None:
    agent, num_final, num_lost = make_agent(is_told=is_told), 0, 0
    for number, batch in enumerate(batches(agent=agent)):
        states = batch.recurrent_state
        assert states is not None
        if batch.previous is not None:
            states = torch.cat((states, batch.previous), 2)
        if number % 2:  # as if these steps had not been taken, because the worker was lost
            batch.valid[batch.final_step, batch.final_env] = False
        last, final = bootstrap_values(agent, batch, A2CConfig())
        for b in range(B):
            own = value(agent, batch.observation[T, b], states[T, b])
            torch.testing.assert_close(last[b], torch.tensor(own))
        expected = torch.zeros(T, B)
        for k, (t, b) in enumerate(zip(batch.final_step, batch.final_env, strict=True)):
            if batch.valid[t, b]:
                state = states[t + 1, b]
            else:
                has_begun = t > 0 and (batch.terminated | batch.truncated)[t - 1, b]
                state = torch.zeros_like(states[t, b]) if has_begun else states[t, b]
                num_lost += 1
            expected[t, b] = value(agent, batch.final_observation[k], state)
            num_final += 1
        torch.testing.assert_close(final, expected)
    assert num_final > num_lost > 5


def value(agent: PolicyAgent, observation: Tensor, remembered: Tensor) -> float:
    state, told = remembered.split((agent.model.state_size, 5 * (agent.model.previous is not None)))
    previous = None if agent.model.previous is None else told.view(1, 1, 5)
    one = Sequences(state.unsqueeze(0), torch.zeros(1, 1, dtype=torch.bool), previous)
    with torch.no_grad():
        return float(agent.evaluate(observation.unsqueeze(0), one).value)


class SpyingAgent(PolicyAgent):
    """Keeps what its learner asks with gradient."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[tuple[Tensor, Sequences]] = []

    def evaluate(self, observation: Tensor, sequences: Sequences | None = None) -> PolicyValue:
        if torch.is_grad_enabled():
            assert sequences is not None
            self.asked.append((observation, sequences))
        return super().evaluate(observation, sequences)


def test_minibatches_are_whole_columns_each_once_an_epoch() -> None:
    agent = SpyingAgent(make_agent().model)
    learner, _ = make_learner("ppo-pairs", agent)
    batch = batches()[2]
    learner.update(acted(agent, batch), 0.0)
    assert batch.recurrent_state is not None and batch.recurrent_state[0].any(1).sum() > 1
    whole = batch.sequences(slice(0, T))
    assert whole is not None
    orders = []
    for epoch in (agent.asked[:2], agent.asked[2:]):
        order = []
        for observation, sequences in epoch:
            rows = observation.view(T, 2, 3)
            for i in range(2):
                same = [b for b in range(B) if torch.equal(batch.observation[:T, b], rows[:, i])]
                (b,) = same
                assert torch.equal(sequences.state[i], batch.recurrent_state[0, b])
                assert torch.equal(sequences.is_first[:, i], whole.is_first[:, b])
                order.append(b)
        orders.append(order)
    assert all(sorted(order) == list(range(B)) for order in orders)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("num_learners", [1, 2])
def test_minibatches_that_cut_sequences_are_refused(num_learners: int) -> None:
    agent = make_agent()
    learner = learner_of(PPOConfig(minibatch_size=4 * num_learners), agent, task_of(T, B))
    learner.sync.num_sharing = num_learners
    sizes = f"minibatch_size={4 * num_learners} horizon=7 use minibatch_size={7 * num_learners}"
    with pytest.raises(ValueError, match=words(sizes)):
        learner.update(acted(agent, batches()[0]), 0.0)


def test_nothing_of_a_rollout_moves_with_observations_of_masked_rows() -> None:
    """What waits is not learned from, and no later step remembers it."""
    batch = batches("wait")[3]
    waits = ~batch.valid[-1]
    assert waits.any() and not waits.all()
    moved = []
    for is_changed in (False, True):
        observation, states = batch.observation.clone(), batch.recurrent_state
        assert states is not None
        if is_changed:  # also what would be bootstrapped from
            observation[:T][~batch.valid] = 7
            observation[T, waits] = 7
            states = states.clone()
            states[T, waits] = 0.5
        learner, sync = make_learner("a2c", make_agent())
        learner.update(batch._replace(observation=observation, recurrent_state=states), 0.0)
        moved.append(sync.parameters.parameter.clone())
    np.testing.assert_array_equal(*(each.numpy() for each in moved))
