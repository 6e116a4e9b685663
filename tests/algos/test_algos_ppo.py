"""PPO: its loss against explicit loops, and what of a rollout moves the parameters how often."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from made_rollouts import LinearModel, acted, learner_of, numbers, task_of
from torch import Tensor

from accel_rl.agents import PolicyAgent, RolloutTensors
from accel_rl.algos import PPO, PPOConfig
from accel_rl.algos.ppo import PPOBatch, PPOLoss, ppo_loss
from accel_rl.models import PolicyValue
from accel_rl.parallel import Local

pytestmark = pytest.mark.numeric

T, B, NUM_ACTIONS = 6, 4, 3


def random_case(num_samples: int = 40) -> tuple[PolicyValue, PPOBatch]:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(num_samples, NUM_ACTIONS)))
    action = torch.from_numpy(rng.integers(NUM_ACTIONS, size=num_samples))
    chosen = logits.log_softmax(1).gather(1, action.unsqueeze(1)).squeeze(1)
    batch = PPOBatch(
        action=action,
        return_=torch.from_numpy(rng.normal(size=num_samples)),
        advantage=torch.from_numpy(rng.normal(size=num_samples)),
        behaviour_log_prob=chosen + torch.from_numpy(0.3 * rng.normal(size=num_samples)),
        behaviour_value=torch.from_numpy(rng.normal(size=num_samples)),
        valid=torch.from_numpy(rng.random(num_samples) < 0.7),
    )
    return PolicyValue(logits, torch.from_numpy(rng.normal(size=num_samples))), batch


def slow_loss(
    output: PolicyValue, batch: PPOBatch, clip: float, clip_value: bool
) -> list[dict[str, float]]:
    """Of each sample; in the mean over valid ones."""
    names = "policy_loss", "value_loss", "entropy", "kl", "clip_fraction"
    count = int(batch.valid.sum())
    assert 0 < count < len(batch.action)
    losses = []
    for i in range(len(batch.action)):
        losses.append(dict.fromkeys(names, 0.0))
        if not batch.valid[i]:
            continue
        weights = [math.exp(z) for z in output.logits[i].tolist()]
        p = [w / sum(weights) for w in weights]
        ratio = p[int(batch.action[i])] / math.exp(batch.behaviour_log_prob[i].item())
        advantage = batch.advantage[i].item()
        clipped = min(max(ratio, 1 - clip), 1 + clip)
        policy = -min(ratio * advantage, clipped * advantage)
        return_, value = batch.return_[i].item(), output.value[i].item()
        error = (return_ - value) ** 2
        if clip_value:
            old = batch.behaviour_value[i].item()
            near = min(max(value, old - clip), old + clip)
            error = max(error, (return_ - near) ** 2)
        entropy = -sum(q * math.log(q) for q in p)
        kl, is_clipped = ratio - 1 - math.log(ratio), abs(ratio - 1) > clip
        each = policy, error, entropy, kl, is_clipped
        losses[-1] = {name: x / count for name, x in zip(names, each, strict=True)}
    return losses


@pytest.mark.parametrize("clip_value", [False, True])
def test_loss_of_each_sample_equals_slow_version_and_is_0_where_not_valid(clip_value: bool) -> None:
    output, batch = random_case()
    loss = ppo_loss(output, batch, 0.2, clip_value, value_coefficient=0.5, entropy_coefficient=0.01)
    losses = slow_loss(output, batch, 0.2, clip_value)
    assert 0 < sum(expected["clip_fraction"] for expected in losses) < 1
    for i, expected in enumerate(losses):
        for name, value in expected.items():
            found = getattr(loss, name)[i].item()
            assert found == pytest.approx(value, rel=1e-12, abs=1e-15), name
        total = expected["policy_loss"] + 0.5 * expected["value_loss"] - 0.01 * expected["entropy"]
        assert loss.total[i].item() == pytest.approx(total, rel=1e-12)


def one_sample(probability: float, advantage: float, clip: float = 0.2) -> tuple[PPOLoss, Tensor]:
    """Two actions of which the chosen one had probability 1/2 and now has ``probability``."""
    z = math.log(probability / (1 - probability))
    logits = torch.tensor([[0.0, z]], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, dtype=torch.float64)
    batch = PPOBatch(
        action=torch.tensor([1]),
        return_=one,
        advantage=advantage * one,
        behaviour_log_prob=math.log(0.5) * one,
        behaviour_value=one,
        valid=torch.tensor([True]),
    )
    loss = ppo_loss(PolicyValue(logits, one), batch, clip, False, 1.0, 0.0)
    (gradient,) = torch.autograd.grad(loss.total, logits)
    return loss, gradient[0]


@pytest.mark.parametrize(
    ("probability", "advantage", "policy", "has_gradient"),
    [
        (0.55, 2.0, -2.2, True),  # ratio 1.1, within the range
        (0.75, 2.0, -2.4, False),  # 1.5: no more is gained than 1.2 * 2
        (0.75, -2.0, 3.0, True),  # 1.5 of what is bad: pulled back in full
        (0.25, 2.0, -1.0, True),  # 0.5 of what is good: likewise
        (0.25, -2.0, 1.6, False),  # 0.5 of what is bad: no more is gained than 0.8 * 2
    ],
)
def test_objective_and_gradient_of_one_sample_equal_hand_computed(
    probability: float, advantage: float, policy: float, has_gradient: bool
) -> None:
    loss, gradient = one_sample(probability, advantage)
    assert loss.policy_loss.item() == pytest.approx(policy, rel=1e-12)
    # d(-A p / 0.5)/dz = -2 A p (1 - p)
    expected = -2 * advantage * probability * (1 - probability) if has_gradient else 0.0
    np.testing.assert_allclose(gradient.numpy(), [-expected, expected], rtol=1e-12)


def test_value_clipping_takes_gradient_from_values_that_ran_away() -> None:
    one = torch.ones(1, dtype=torch.float64)
    for value, gradient in ((1.1, -1.8), (1.5, 0.0)):  # -2 (2 - 1.1); 1.5 is clipped to 1.2
        v = torch.tensor([value], dtype=torch.float64, requires_grad=True)
        batch = PPOBatch(torch.tensor([0]), 2 * one, one, 0 * one, one, torch.tensor([True]))
        loss = ppo_loss(PolicyValue(torch.zeros(1, 2).double(), v), batch, 0.2, True, 1.0, 0.0)
        (found,) = torch.autograd.grad(loss.total, v)
        assert found.item() == pytest.approx(gradient)


def test_values_within_the_clip_range_have_the_gradient_of_the_squared_error() -> None:
    """However the two errors, which are equal there, are rounded."""
    output, batch = random_case(1000)
    value = (batch.behaviour_value + torch.linspace(-0.19, 0.19, 1000)).requires_grad_()
    ppo_loss(output._replace(value=value), batch, 0.2, True, 1.0, 0.0).total.sum().backward()
    expected = 2 * (value.detach() - batch.return_) * batch.valid / batch.valid.sum()
    torch.testing.assert_close(value.grad, expected, rtol=1e-12, atol=0)


def test_loss_refuses_values_of_wrong_shape() -> None:
    output, batch = random_case()
    with pytest.raises(ValueError, match=r"expected \[N\] with N = 40"):
        ppo_loss(output._replace(value=output.value.unsqueeze(1)), batch, 0.2, False, 1.0, 0.0)


def make_learner(seed: int = 0, **options: Any) -> tuple[PPO, LinearModel, Local]:
    config = PPOConfig(**{"minibatch_size": 8, **options})
    model = LinearModel()
    learner = learner_of(config, PolicyAgent(model), task_of(T, B, seed))
    return learner, model, learner.sync


def make_batch() -> RolloutTensors:
    return acted(PolicyAgent(LinearModel()), numbers(T, B, NUM_ACTIONS))


def test_each_epoch_uses_every_step_once_in_another_order() -> None:
    learner, model, sync = make_learner(epochs=3)
    batch = make_batch()
    learner.update(batch, progress=0.0)
    assert sync.num_updates == 9
    epochs = [torch.cat(model.seen[i : i + 3]) for i in (0, 3, 6)]
    for seen in epochs:
        assert torch.equal(seen.sort().values, batch.observation[:T].flatten().sort().values)
    assert not torch.equal(epochs[0], epochs[1])


def test_one_update_on_the_whole_rollout_moves_parameters_as_worked_out_by_loops() -> None:
    learner, model, _ = make_learner(
        epochs=1, minibatch_size=T * B, lr=0.01, gae_lambda=0.9, value_coefficient=0.5
    )
    batch = make_batch()
    metrics = learner.update(batch, progress=0.0)
    # At the start all ratios are 1, so the policy's gradient is A2C's, with these advantages:
    # delta_t = r_t + 0.99 V_(t+1) - V_t; A_t = delta_t + 0.99 * 0.9 * A_(t+1)
    grad_scale, grad_logits, n = 0.0, np.zeros(NUM_ACTIONS), T * B
    x = batch.observation.tolist()
    for b in range(B):
        advantage = 0.0
        for t in reversed(range(T)):
            delta = batch.reward[t, b].item() + 0.99 * x[t + 1][b] - x[t][b]
            advantage = delta + 0.99 * 0.9 * advantage
            grad_scale += 0.5 * -2 * advantage * x[t][b] / n  # return - value = advantage
            for j in range(NUM_ACTIONS):
                chosen = j == batch.action[t, b].item()
                grad_logits[j] += advantage * (1 / NUM_ACTIONS - chosen) / n
    norm = np.sqrt(grad_scale**2 + (grad_logits**2).sum())
    assert metrics["gradient_norm"].item() == pytest.approx(norm, rel=1e-5)
    assert metrics["kl"].item() == pytest.approx(0.0, abs=1e-6)
    for found, start, grad in ((model.scale, 1.0, grad_scale), (model.logits, 0.0, grad_logits)):
        rate = 0.01 * 0.001**0.5 / 0.1
        expected = start - rate * 0.1 * grad / (0.001**0.5 * np.abs(grad) + 1e-5)
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-4)


def test_rows_that_are_not_valid_do_not_move_parameters() -> None:
    results = []
    for garbage in (0.0, 1000.0):
        batch = make_batch()
        batch.terminated[2, 1] = True
        batch.valid[3:, 1] = False
        batch.reward[3:, 1] = garbage
        batch.observation[3:, 1] = garbage
        learner, _, sync = make_learner(normalize_advantage=True)
        learner.update(batch, progress=0.0)
        results.append(sync.parameters.parameter.clone())
    assert torch.equal(*results)


def test_minibatch_without_a_valid_step_changes_nothing() -> None:
    batch = make_batch()
    batch.valid[:] = False
    learner, _, sync = make_learner()
    before = sync.parameters.parameter.clone()
    metrics = learner.update(batch, progress=0.0)
    assert all(value.isfinite() for value in metrics.values())
    assert torch.equal(sync.parameters.parameter, before)


def test_updates_of_a_rollout_end_where_a_minibatch_is_too_far_from_the_policy_that_acted() -> None:
    options: dict[str, Any] = {"epochs": 4, "lr": 0.05}
    free, model, sync = make_learner(**options)
    batch, minimize = make_batch(), free.optimizer.minimize
    logits, parameters = [], []

    def watched(*arguments: Any, **named: Any) -> Any:
        logits.append(model.logits.tolist())
        minimize(*arguments, **named)
        parameters.append(sync.parameters.parameter.clone())

    free.optimizer.minimize = watched  # type: ignore[method-assign]
    free.update(batch, progress=0.0)
    observations, actions = batch.observation[:T].flatten(), batch.action.flatten()
    action_of = dict(zip(observations.tolist(), actions.tolist(), strict=True))
    divergences = []
    for now, seen in zip(logits, model.seen, strict=True):
        weights = [math.exp(each) for each in now]
        divergences.append(0.0)
        for observation in seen.tolist():  # all actions had probability 1/3
            ratio = 3 * weights[action_of[observation]] / sum(weights)
            divergences[-1] += (ratio - 1 - math.log(ratio)) / len(seen)
    middle = sum(sorted(divergences)[5:7]) / 2
    last = next(i for i, each in enumerate(divergences) if each > middle)
    assert 0 < last < len(divergences) - 1
    stopped, _, sync = make_learner(**options, target_kl=middle / 1.5)
    stopped.update(make_batch(), progress=0.0)
    assert sync.num_updates == last + 1
    assert torch.equal(sync.parameters.parameter, parameters[last])


def test_schedule_lowers_learning_rate_and_clip_range_together(monkeypatch) -> None:
    clip_ranges = []

    def spy(output: Any, batch: Any, clip_range: float, *rest: Any) -> PPOLoss:
        clip_ranges.append(clip_range)
        return ppo_loss(output, batch, clip_range, *rest)

    monkeypatch.setattr("accel_rl.algos.ppo.ppo_loss", spy)
    moves = []
    for schedule, progress, of_clip in (
        ("linear", 0.0, "linear"),
        ("linear", 0.75, "linear"),
        ("constant", 0.75, "linear"),
        ("linear", 0.75, "constant"),
    ):
        learner, _, sync = make_learner(
            epochs=1, minibatch_size=24, lr_schedule=schedule, clip_schedule=of_clip
        )
        before = sync.parameters.parameter.clone()
        learner.update(make_batch(), progress)
        moves.append((sync.parameters.parameter - before).abs().max().item())
    assert clip_ranges == pytest.approx([0.2, 0.05, 0.2, 0.2])
    assert moves[1] == pytest.approx(moves[0] / 4, rel=1e-3)
    assert moves[2] == pytest.approx(moves[0], rel=1e-3)
    assert moves[3] == pytest.approx(moves[1], rel=1e-3)


def test_shuffling_goes_on_from_a_state() -> None:
    learner, model, _ = make_learner()
    learner.update(make_batch(), 0.0)
    state = learner.get_state()
    model.seen.clear()
    learner.update(make_batch(), 0.0)
    other, other_model, _ = make_learner(seed=7)
    other.set_state(state)
    other.update(make_batch(), 0.0)
    assert all(map(torch.equal, model.seen, other_model.seen))


@pytest.mark.parametrize(("size", "fits"), [(500, 256), (4096, 2048)])
def test_rollout_that_minibatches_do_not_divide_is_refused(size: int, fits: int) -> None:
    with pytest.raises(ValueError, match=f"minibatch_size={size} .* use minibatch_size={fits}"):
        PPOConfig(minibatch_size=size).check_rollout(num_envs=8, horizon=256)
