"""PQN with a recurrent network, against one that goes through each environment alone."""

from typing import Any

import pytest
import torch
from made_rollouts import learner_of, task_of
from recurrent_play import B, T, collect, config, plain_steps
from tiers import first_quick
from torch import Tensor
from toy_envs import ToyEnv

from accel_rl.agents import QAgent, RolloutTensors
from accel_rl.algos import PQN, NetworkSpec, PQNConfig
from accel_rl.algos.returns import fold_truncation, lambda_returns
from accel_rl.envs import EnvSpec
from accel_rl.models import Sequences
from accel_rl.models.memory import RecurrentModel
from accel_rl.parallel import Local
from accel_rl.samplers import SerialSampler

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")


class SlowModel(RecurrentModel):
    """Goes through each environment alone, by operations that autograd knows."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.state_size = inner, inner.state_size

    def forward(self, observation: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        state, is_first, _ = sequences
        rows = observation.view(*is_first.shape, *observation.shape[1:])
        model, outputs = self.inner, []
        for b in range(is_first.shape[1]):
            own = state[b : b + 1], is_first[:, b : b + 1]
            x = plain_steps(model.memory, model.network(rows[:, b]), *own)
            outputs.append(model.heads.advantage(x))
        return torch.stack(outputs, 1).flatten(0, 1).unsqueeze(2), state


def make_agent(epsilon: float = 0.3) -> QAgent:
    """Its weights are large enough for actions to tell what is remembered."""
    torch.manual_seed(0)
    with SerialSampler(ToyEnv, config=config()) as sampler:
        spec: EnvSpec = sampler.env_spec
    options: Any = {"memory": "lstm"}
    agent = PQNConfig().make_agent(NetworkSpec("auto", spec, CPU, **options))
    assert agent.remembers
    for parameter in agent.model.memory.parameters():  # type: ignore[union-attr, operator]
        parameter.data.mul_(2)
    agent.epsilon = torch.full((1,), epsilon)
    return agent


def batches(reset_policy: Any = "immediate") -> list[RolloutTensors]:
    agent: Any = make_agent()
    return collect(SerialSampler(ToyEnv, config=config(reset_policy), seed=5), 8, agent)


def make_learner(agent: QAgent, size: int) -> tuple[PQN, Local]:
    # Small steps, lest rounding grows.
    settings = PQNConfig(lr=1e-5, minibatch_size=size)
    learner = learner_of(settings, agent, task_of(T, B))
    return learner, learner.sync


@pytest.mark.parametrize(
    ("size", "reset_policy"),
    first_quick([(2 * T, "wait"), (T, "immediate"), (T * B, "immediate"), (T, "wait")], 2),
)
def test_update_is_that_of_each_environment_alone(size: int, reset_policy: str) -> None:
    """Episodes, lives and cut-offs end anywhere in these rollouts."""
    found, collected = [], batches(reset_policy)[:4]
    assert any(len(batch.final_step) for batch in collected)
    for is_slow in (False, True):
        agent = make_agent()
        if is_slow:
            slow = SlowModel(agent.model)
            agent = QAgent(slow, None, agent.epsilon)
        learner, sync = make_learner(agent, size)
        before = sync.parameters.parameter.clone()
        metrics = [learner.update(batch, 0.0) for batch in collected]
        found.append((sync.parameters.parameter - before, metrics))
    (moved, metrics), (expected, slow_metrics) = found
    assert float((moved - expected).norm() / expected.norm()) < 0.01
    for own, other in zip(metrics, slow_metrics, strict=True):
        for name in own:
            torch.testing.assert_close(own[name], other[name], rtol=2e-3, atol=2e-4, msg=name)


@pytest.mark.parametrize("reset_policy", ["immediate", "wait"])
def test_targets_are_of_what_was_remembered_at_each_step(reset_policy: str) -> None:
    """Those of values computed in one go from the state at the start of the rollout."""
    agent = make_agent()
    learner, _ = make_learner(agent, T)
    differs = False
    for batch in batches(reset_policy):
        steps = learner.prepare(batch)
        states = batch.recurrent_state
        assert states is not None
        ended = batch.terminated | batch.truncated | ~batch.valid
        is_first = torch.cat((torch.zeros_like(ended[:1]), ended))
        with torch.no_grad():
            slow = SlowModel(agent.model)
            output, _ = slow(batch.observation.flatten(0, 1), Sequences(states[0], is_first))
            forgetful, _ = slow(
                batch.observation.flatten(0, 1),
                Sequences(states[0], torch.ones_like(is_first)),
            )
            final = torch.zeros(T, B)
            for k, (t, b) in enumerate(zip(batch.final_step, batch.final_env, strict=True)):
                one = Sequences(states[t + 1, b : b + 1], torch.zeros(1, 1, dtype=torch.bool))
                final[t, b] = slow(batch.final_observation[k : k + 1], one)[0].max()
        ends = batch.terminated, batch.truncated, batch.valid
        reward, discount = fold_truncation(batch.reward, *ends, final, 0.99)
        value, other = (each.amax((1, 2)).view(T + 1, B) for each in (output, forgetful))
        expected = lambda_returns(reward, discount, value[1:], 0.65)
        differs |= not torch.allclose(value, other, atol=0.01)
        valid = batch.valid
        found = steps.return_.view(T, B)
        torch.testing.assert_close(found[valid], expected[valid], rtol=1e-4, atol=1e-4)
    assert differs
