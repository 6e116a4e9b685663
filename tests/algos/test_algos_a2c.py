"""The A2C learner: what of a rollout moves the parameters, and by how much."""

import numpy as np
import pytest
import torch
from made_rollouts import LinearModel, learner_of, numbers, task_of
from tiers import first_quick

from accel_rl.agents import PolicyAgent, RolloutTensors
from accel_rl.algos import A2C, A2CConfig, evaluate_steps
from accel_rl.algos.actor_critic import bootstrap_values
from accel_rl.models import PolicyValueModel, make_model
from accel_rl.parallel import FlatParameters
from accel_rl.spaces import Leaf

pytestmark = pytest.mark.numeric

T, B, NUM_ACTIONS = 5, 4, 3


def make_learner(model: PolicyValueModel, config: A2CConfig) -> tuple[A2C, FlatParameters]:
    learner = learner_of(config, PolicyAgent(model), task_of(T, B))
    return learner, learner.sync.parameters


def make_batch(seed: int = 0) -> RolloutTensors:
    return numbers(T, B, NUM_ACTIONS, seed)


def truncated_batch() -> RolloutTensors:
    """As `make_batch`, but environment 1 is truncated at step 2 with the final observation 50."""
    batch = make_batch()
    batch.truncated[2, 1] = True
    return batch._replace(
        final_observation=torch.tensor([50.0]),
        final_step=torch.tensor([2]),
        final_env=torch.tensor([1]),
    )


def slow_mean_target(batch: RolloutTensors, gamma: float, final_value: float) -> float:
    total = 0.0
    for b in range(B):
        following = batch.observation[T, b].item()
        for t in reversed(range(T)):
            if batch.truncated[t, b]:
                following = final_value
            following = batch.reward[t, b].item() + gamma * following
            total += following
    return total / (T * B)


@pytest.mark.parametrize(
    ("bootstrap_on_truncation", "final_value"),
    [(True, 50.0), (False, 0.0)],
    ids=["bootstrap", "end"],
)
def test_truncated_step_bootstraps_from_final_observation_unless_terminal(
    bootstrap_on_truncation: bool, final_value: float
) -> None:
    config = A2CConfig(bootstrap_on_truncation=bootstrap_on_truncation)
    learner, _ = make_learner(LinearModel(), config)
    batch = truncated_batch()
    metrics = learner.update(batch, progress=0.0)
    expected = slow_mean_target(batch, config.gamma, final_value)
    assert metrics["mean_value_target"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("bootstrap_on_truncation", [True, False], ids=["bootstrap", "end"])
def test_lost_worker_is_no_time_limit(bootstrap_on_truncation: bool) -> None:
    batch = truncated_batch()
    batch.valid[2:, 1] = False
    config = A2CConfig(bootstrap_on_truncation=bootstrap_on_truncation)
    _, final_value = bootstrap_values(PolicyAgent(LinearModel()), batch, config)
    assert final_value[2, 1] == 50
    assert final_value.count_nonzero() == 1


def test_update_moves_parameters_as_worked_out_by_loops() -> None:
    config = A2CConfig(lr=0.01, max_gradient_norm=None, value_coefficient=0.25)
    model, batch = LinearModel(), make_batch()
    learner, _ = make_learner(model, config)
    metrics = learner.update(batch, progress=0.0)
    # With a uniform policy the entropy has no gradient; d(-A log p_a)/dz_j = A (1/3 - [j = a]).
    # The value is scale * x: d(R - x)^2/dscale = -2 (R - x) x.
    grad_scale, grad_logits, n = 0.0, np.zeros(NUM_ACTIONS), T * B
    for b in range(B):
        return_ = batch.observation[T, b].item()
        for t in reversed(range(T)):
            x = batch.observation[t, b].item()
            return_ = batch.reward[t, b].item() + config.gamma * return_
            grad_scale += 0.25 * -2 * (return_ - x) * x / n
            for j in range(NUM_ACTIONS):
                chosen = j == batch.action[t, b].item()
                grad_logits[j] += (return_ - x) * (1 / NUM_ACTIONS - chosen) / n
    norm = np.sqrt(grad_scale**2 + (grad_logits**2).sum())
    assert metrics["gradient_norm"].item() == pytest.approx(norm, rel=1e-5)
    assert metrics["entropy"].item() == pytest.approx(np.log(NUM_ACTIONS), rel=1e-6)
    for found, start, grad in ((model.scale, 1.0, grad_scale), (model.logits, 0.0, grad_logits)):
        expected = start - 0.01 * grad / np.sqrt(0.1 * grad**2 + 1e-6)
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-4)


def test_loss_is_a_mean_or_a_sum_of_all_samples_or_of_the_steps_of_an_environment() -> None:
    batch, norms = make_batch(), {}
    for reduction in ("mean", "sum", "sum_over_time"):
        config = A2CConfig(loss_reduction=reduction, max_gradient_norm=None)  # type: ignore[arg-type]
        learner, _ = make_learner(LinearModel(), config)
        norms[reduction] = learner.update(batch, progress=0.0)["gradient_norm"].item()
    T, B = batch.reward.shape
    assert norms["sum"] == pytest.approx(T * B * norms["mean"], rel=1e-5)
    assert norms["sum_over_time"] == pytest.approx(T * norms["mean"], rel=1e-5)


def test_each_update_starts_from_a_zero_gradient() -> None:
    learner, _ = make_learner(LinearModel(), A2CConfig(lr=1e-12, max_gradient_norm=None))
    norms = [learner.update(make_batch(), progress=0.0)["gradient_norm"].item() for _ in range(3)]
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-4)


@pytest.mark.parametrize("vtrace", [False, True])
def test_rows_that_are_not_valid_do_not_move_parameters(vtrace: bool) -> None:
    results = []
    for garbage in (0.0, 1000.0):
        batch = make_batch()
        batch.terminated[2, 1] = True
        batch.valid[3:, 1] = False
        batch.reward[3:, 1] = garbage
        batch.observation[3:, 1] = garbage
        batch = with_log_prob(batch, [1.0, 0.0, -1.0])
        batch.log_prob[3:, 1] = -torch.inf if garbage else 0.0  # type: ignore[index]
        learner, flat = make_learner(LinearModel(), A2CConfig(vtrace=vtrace))
        learner.update(batch, progress=0.0)
        results.append(flat.parameter.clone())
    assert torch.equal(*results)


def test_normalized_advantages_make_policy_gradient_blind_to_reward_scale() -> None:
    norms = []
    for scale in (1.0, 100.0):
        batch = make_batch()
        batch = batch._replace(observation=scale * batch.observation, reward=scale * batch.reward)
        config = A2CConfig(normalize_advantage=True, value_coefficient=0.0, max_gradient_norm=None)
        learner, _ = make_learner(LinearModel(), config)
        norms.append(learner.update(batch, progress=0.0)["gradient_norm"].item())
    assert norms[0] > 0
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


def with_log_prob(batch: RolloutTensors, logits: list[float]) -> RolloutTensors:
    """Chosen by a policy with these logits in every state."""
    log_prob = torch.tensor(logits).log_softmax(0)[batch.action]
    return batch._replace(log_prob=log_prob)


@pytest.mark.parametrize("options", first_quick([{}, {"gae_lambda": 0.7}]))
def test_vtrace_of_the_policy_that_learns_changes_no_update(options: dict[str, float]) -> None:
    results = []
    for config in (A2CConfig(vtrace=True, **options), A2CConfig(**options)):
        learner, flat = make_learner(LinearModel(), config)
        batch = with_log_prob(truncated_batch(), [0.0, 0.0, 0.0])
        results.append((learner.update(batch, progress=0.0), flat.parameter.clone()))
    (found, moved), (expected, plain) = results
    torch.testing.assert_close(moved, plain)
    assert list(found) == list(expected)
    for name in found:
        assert found[name].item() == pytest.approx(expected[name].item(), rel=1e-5, abs=1e-6)


def test_update_with_vtrace_is_that_of_its_definition() -> None:
    """Targets by sums of products; the policy is uniform, another one has acted."""
    config = A2CConfig(vtrace=True, max_gradient_norm=None)
    batch = with_log_prob(make_batch(), [1.0, 0.0, -1.0])
    assert batch.log_prob is not None
    learner, _ = make_learner(LinearModel(), config)
    metrics = learner.update(batch, progress=0.0)
    ratio = (1 / NUM_ACTIONS / batch.log_prob.exp()).tolist()
    value, reward, gamma = batch.observation.tolist(), batch.reward.tolist(), config.gamma

    def target(s: int, b: int) -> float:
        total = value[s][b]
        for t in range(s, T):
            product = np.prod([min(1.0, ratio[i][b]) for i in range(s, t)])
            error = reward[t][b] + gamma * value[t + 1][b] - value[t][b]
            total += gamma ** (t - s) * product * min(1.0, ratio[t][b]) * error
        return float(total)

    targets = [[target(s, b) for b in range(B)] for s in range(T)] + [value[T]]
    advantages = [
        min(1.0, ratio[t][b]) * (reward[t][b] + gamma * targets[t + 1][b] - value[t][b])
        for t in range(T)
        for b in range(B)
    ]
    errors = [(targets[t][b] - value[t][b]) ** 2 for t in range(T) for b in range(B)]
    assert metrics["mean_value_target"].item() == pytest.approx(np.mean(targets[:T]), rel=1e-5)
    assert metrics["value_loss"].item() == pytest.approx(np.mean(errors), rel=1e-5)
    policy_loss = -np.mean(advantages) * np.log(1 / NUM_ACTIONS)
    assert metrics["policy_loss"].item() == pytest.approx(policy_loss, rel=1e-4)


def test_vtrace_without_log_probabilities_is_refused() -> None:
    learner, _ = make_learner(LinearModel(), A2CConfig(vtrace=True))
    with pytest.raises(ValueError, match=r"log-probabilities .* set tells_log_prob"):
        learner.update(make_batch(), progress=0.0)


@pytest.mark.parametrize(
    ("options", "num_envs", "progress", "expected"),
    [
        ({}, 16, 0.5, 7e-4),
        ({}, 64, 0.5, 1.4e-3),
        ({}, 512, 0.0, 7e-4 * 32**0.5),
        ({}, 4, 0.0, 3.5e-4),
        ({"lr": 2.5e-4}, 64, 0.9, 2.5e-4),
        ({"lr_schedule": "linear"}, 64, 0.75, 3.5e-4),
        ({"lr_schedule": "linear"}, 16, 1.0, 0.0),
    ],
)
def test_learning_rate_follows_rule_and_schedule(
    options: dict[str, float], num_envs: int, progress: float, expected: float
) -> None:
    config = A2CConfig(**options)  # type: ignore[arg-type]
    assert config.learning_rate(num_envs, progress) == pytest.approx(expected)


def test_update_uses_learning_rate_of_the_batch_and_progress() -> None:
    moves = []
    for progress in (0.0, 0.5, 1.0):
        learner, flat = make_learner(LinearModel(), A2CConfig(lr_schedule="linear"))
        before = flat.parameter.clone()
        learner.update(make_batch(), progress)
        moves.append((flat.parameter - before).abs().max().item())
    # the first step of RMSProp from 0 is lr / sqrt(1 - decay); lr = 7e-4 * sqrt(4 / 16)
    assert moves[0] == pytest.approx(3.5e-4 / 0.1**0.5, rel=1e-2)
    assert moves[1] == pytest.approx(moves[0] / 2, rel=1e-2)
    assert moves[2] == 0


def test_steps_are_evaluated_one_by_one() -> None:
    torch.manual_seed(0)
    agent = PolicyAgent(make_model("mlp", Leaf((2,), np.dtype(np.float32)), NUM_ACTIONS))
    batch = make_batch()._replace(observation=torch.randn(T + 1, B, 2))
    steps = evaluate_steps(agent, batch, "float32")
    for t in range(T):
        for b in range(B):
            logits, value = agent.model(batch.observation[t, b : b + 1])
            policy = torch.distributions.Categorical(logits=logits[0])
            expected = policy.log_prob(batch.action[t, b]), policy.entropy(), value[0]
            torch.testing.assert_close(tuple(each[t, b] for each in steps), expected)
    assert all(each.requires_grad for each in steps)
