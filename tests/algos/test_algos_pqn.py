"""PQN: its targets, loss and schedules against explicit loops, and what it refuses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from made_rollouts import learner_of
from torch import Tensor, nn

from accel_rl.agents import QAgent, RolloutTensors
from accel_rl.algos import PQN, LearnerSpec, NetworkSpec, PQNConfig
from accel_rl.algos.value_distributions import squared_loss
from accel_rl.cli.parse import parse_arguments
from accel_rl.envs import EnvSpec
from accel_rl.models.q_value import QModel
from accel_rl.parallel import Local
from accel_rl.spaces import Leaf, discrete, map_leaves

pytestmark = pytest.mark.numeric

T, B, A, GAMMA, LAMBDA = 6, 4, 3, 0.9, 0.65
CPU = torch.device("cpu")
FLOAT32 = np.dtype(np.float32)
ENV = EnvSpec(name="toy", observation=Leaf((3,), FLOAT32), action=discrete(A))
MASKED = {"observation": ENV.observation, "action_mask": Leaf((A,), np.dtype(np.int8))}


class LinearQ(QModel):
    """Values are linear in three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, A)

    def forward(self, observation: Tensor) -> Tensor:
        return self.layer(observation).unsqueeze(2)


def make(
    seed: int = 0, env: EnvSpec = ENV, schedule_steps: int | None = None, **options: Any
) -> tuple[PQN, LinearQ, Local]:
    small = {"minibatch_size": 8, "gamma": GAMMA, "q_lambda": LAMBDA}
    config = PQNConfig(**{**small, **options})
    torch.manual_seed(0)
    model = LinearQ()
    agent = QAgent(model, None, torch.ones(1))
    task = LearnerSpec(env, B, T, seed, schedule_steps=schedule_steps)
    learner = learner_of(config, agent, task)
    return learner, model, learner.sync


def make_batch(is_masked: bool = False, seed: int = 0) -> RolloutTensors:
    """Random, with ends of both kinds and a step that a lost worker did not take."""
    g = torch.Generator().manual_seed(seed)

    def observations(*rows: int) -> Any:
        seen = torch.randn(*rows, 3, generator=g)
        mask = (torch.rand(*rows, A, generator=g) < 0.5).to(torch.int8)
        mask.scatter_(-1, torch.randint(0, A, (*rows, 1), generator=g), 1)
        return {"observation": seen, "action_mask": mask} if is_masked else seen

    observation, final = observations(T + 1, B), observations(3)
    if is_masked:
        final["action_mask"][1] = 0  # nothing more is possible
    reward = torch.randn(T, B, generator=g)
    reward[1, 2] = 0.0  # of the step that was not taken, from the final observation
    map_leaves(lambda leaf, last: last[2].copy_(leaf[1, 2]), observation, final)
    flags = torch.zeros(3, T, B, dtype=torch.bool)
    flags[0, 3, 0] = flags[1, 2, 1] = flags[1, 4, 3] = flags[1, 1, 2] = flags[2, 1, 2] = True
    return RolloutTensors(
        observation=observation,
        action=torch.randint(0, A, (T, B), generator=g),
        reward=reward,
        terminated=flags[0],
        truncated=flags[1],
        valid=~flags[2],
        final_observation=final,
        final_step=torch.tensor([2, 4, 1]),
        final_env=torch.tensor([1, 3, 2]),
    )


def slow_value(model: LinearQ, observation: Any, *index: int) -> float:
    """The largest allowed value of one observation; 0 where none is allowed."""
    each: Any = map_leaves(lambda leaf: leaf[index].double().tolist(), observation)
    seen, allowed = (
        (each["observation"], each["action_mask"]) if isinstance(each, dict) else (each, [1] * A)
    )
    weight, bias = model.layer.weight.tolist(), model.layer.bias.tolist()
    values = [
        bias[a] + sum(w * x for w, x in zip(weight[a], seen, strict=True))
        for a in range(A)
        if allowed[a]
    ]
    return max(values, default=0.0)


def slow_target(model: LinearQ, batch: RolloutTensors, t: int, b: int) -> float:
    """The n-step returns of a step, each to its end, weighted by powers of lambda."""
    rewards, returns = 0.0, []
    finals = list(zip(batch.final_step.tolist(), batch.final_env.tolist(), strict=True))
    for n in range(1, T - t + 1):
        row = t + n - 1
        if not batch.valid[row, b]:  # not taken: the episode went on from where it would begin
            assert n > 1
            final = slow_value(model, batch.final_observation, finals.index((row, b)))
            returns.append(rewards + GAMMA ** (n - 1) * final)
            break
        rewards += GAMMA ** (n - 1) * batch.reward[row, b].item()
        if batch.terminated[row, b]:
            returns.append(rewards)
            break
        if batch.truncated[row, b]:
            final = slow_value(model, batch.final_observation, finals.index((row, b)))
            returns.append(rewards + GAMMA**n * final)
            break
        returns.append(rewards + GAMMA**n * slow_value(model, batch.observation, row + 1, b))
    weights = [(1 - LAMBDA) * LAMBDA**i for i in range(len(returns) - 1)]
    weights.append(LAMBDA ** (len(returns) - 1))
    assert sum(weights) == pytest.approx(1)
    return sum(w * each for w, each in zip(weights, returns, strict=True))


@pytest.mark.parametrize("is_masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("minibatch_size", [1, 8, 24])  # also how many rows are valued at once
def test_targets_are_mixtures_of_returns_from_the_best_allowed_values(
    minibatch_size: int, is_masked: bool
) -> None:
    learner, model, _ = make(minibatch_size=minibatch_size)
    batch = make_batch(is_masked)
    steps = learner.prepare(batch)
    found = steps.return_.view(T, B)
    for t in range(T):
        for b in range(B):
            if batch.valid[t, b]:
                expected = slow_target(model, batch, t, b)
                assert found[t, b].item() == pytest.approx(expected, rel=1e-5, abs=1e-6), (t, b)
    assert not steps.return_.requires_grad


def test_time_limits_are_ends_if_they_are_to_be_but_lost_workers_are_none() -> None:
    learner, _, _ = make(bootstrap_on_truncation=False)
    batch = make_batch()
    steps = learner.prepare(batch)
    ended, _, _ = make()
    as_ends = batch.truncated & batch.valid
    expected = ended.prepare(batch._replace(terminated=batch.terminated | as_ends))
    torch.testing.assert_close(steps.return_, expected.return_)
    other = ended.prepare(batch)
    assert not torch.allclose(steps.return_, other.return_)


def test_targets_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \[N\] in all of these"):
        squared_loss(torch.zeros(1, 2), torch.tensor([1]), torch.zeros(1, 1))


def test_one_update_on_the_whole_rollout_moves_parameters_as_worked_out_by_loops() -> None:
    """The first step of rectified Adam is not rectified: the gradient times the learning rate."""
    learner, model, _ = make(epochs=1, minibatch_size=T * B, lr=0.01, max_gradient_norm=None)
    batch, start = make_batch(), model.layer.weight.detach().clone()
    batch.terminated[2, 0], batch.valid[3:, 0] = True, False  # it waits
    batch.reward[3:, 0], batch.observation[3:T, 0] = 1000.0, 1000.0
    count = int(batch.valid.sum())
    gradient, loss, best = np.zeros((A, 3)), 0.0, 0.0
    for t in range(T):
        for b in range(B):
            if not batch.valid[t, b]:
                continue
            a, x = int(batch.action[t, b]), batch.observation[t, b].double().numpy()
            q = start[a].double().numpy() @ x + model.layer.bias[a].item()
            error = q - slow_target(model, batch, t, b)
            gradient[a] += error * x / count
            loss += error**2 / 2 / count
            best += slow_value(model, batch.observation, t, b) / count
    metrics = learner.update(batch, progress=0.0)
    moved = (model.layer.weight.detach() - start).double().numpy()
    np.testing.assert_allclose(moved, -0.01 * gradient, rtol=1e-3, atol=1e-7)
    assert metrics["loss"].item() == pytest.approx(loss, rel=1e-5)
    assert metrics["q_value"].item() == pytest.approx(best, rel=1e-5)
    assert set(metrics) == set(learner.metric_names)


def test_epsilon_and_learning_rate_follow_the_share_of_the_run(monkeypatch) -> None:
    options: Any = {"epsilon_final": 0.05, "exploration_fraction": 0.5, "lr": 0.1, "epochs": 1}
    learner, _, sync = make(minibatch_size=T * B, lr_schedule="linear", **options)
    rates: list[float] = []
    advance = sync.advance
    monkeypatch.setattr(sync, "advance", lambda lr: rates.append(lr) or advance(lr))
    assert learner.agent.epsilon.tolist() == [1.0]
    epsilons = []
    for progress in (0.0, 0.25, 0.5, 0.9, 1.0):
        metrics = learner.update(make_batch(), progress)
        epsilons.append(learner.agent.epsilon.item())
        assert metrics["epsilon"].item() == epsilons[-1]
    assert epsilons == pytest.approx([1.0, 0.525, 0.05, 0.05, 0.05])
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.01, 0.0])


def test_epsilon_is_that_of_the_steps_before_each_rollout_and_reaches_its_end() -> None:
    """As that of DQN: at first 1, then a line; rollouts of 24 of 120 steps."""
    learner, _, _ = make(epsilon_final=0.0, exploration_fraction=1.0, schedule_steps=5 * T * B)
    epsilons = [learner.agent.epsilon.item()]
    for number in range(5):
        learner.update(make_batch(), number / 5, (number + 1) * T * B)
        epsilons.append(learner.agent.epsilon.item())
    assert epsilons == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.0])


def test_state_goes_on_to_the_bit() -> None:
    learner, _, sync = make()
    learner.update(make_batch(seed=1), 0.03)
    other, _, other_sync = make(seed=7)
    other.set_state(learner.get_state())
    other_sync.load_state_dict(sync.state_dict())
    assert torch.equal(learner.agent.epsilon, other.agent.epsilon)
    assert learner.agent.epsilon.item() == pytest.approx(0.7003)  # 1 - 0.3 + 0.3 * 0.001
    for each in (learner, other):
        each.update(make_batch(seed=2), 0.04)
    assert torch.equal(sync.parameters.parameter, other_sync.parameters.parameter)
    assert torch.equal(learner.agent.epsilon, other.agent.epsilon)


def test_masked_updates_in_bfloat16_are_near_those_in_float32() -> None:
    env, found = replace(ENV, observation=MASKED), []
    for precision in ("float32", "bfloat16"):
        config = PQNConfig(precision=precision, minibatch_size=8)
        torch.manual_seed(0)
        agent = config.make_agent(NetworkSpec("auto", env, CPU))
        learner = learner_of(config, agent, LearnerSpec(env, B, T, seed=0))
        found.append(learner.update(make_batch(is_masked=True), 0.0))
    plain, short = found
    assert plain["loss"].item() != short["loss"].item()
    for name, value in plain.items():
        assert short[name].item() == pytest.approx(value.item(), rel=0.05, abs=0.02), name


def test_schedule_steps_is_an_option_although_the_learning_rate_is_constant() -> None:
    config = parse_arguments(["algo=pqn", "total_steps=1e6", "schedule_steps=2e6"])
    assert config.learner.lr_schedule == "constant" and config.progress(1_000_000) == 0.5


@pytest.mark.parametrize(
    "action",
    [Leaf((2,), FLOAT32, (-1, -1), (1, 1)), {"a": discrete(2), "b": discrete(3)}],
    ids=["floats", "mapping"],
)
def test_actions_that_are_not_one_of_several_are_refused(action: Any) -> None:
    with pytest.raises(ValueError, match=r"PQN .*action"):
        PQNConfig().make_agent(NetworkSpec("auto", replace(ENV, action=action), CPU))
