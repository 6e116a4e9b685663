"""Soft actor-critic: its losses against loops over samples, its updates against plain torch."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from made_rollouts import learner_of, made_rollout
from torch import distributions, nn

from accel_rl.agents import BoundedAgent, RolloutTensors
from accel_rl.algos import LearnerSpec, NetworkSpec, SACConfig
from accel_rl.algos.sac import SAC, squash
from accel_rl.envs.base import EnvSpec
from accel_rl.models.soft import SoftModel, TwinCritics, flat
from accel_rl.spaces import Leaf, discrete, map_leaves

CPU = torch.device("cpu")
ACTION = Leaf((2,), np.dtype(np.float32), (-1, -3), (2, 5))
SPEC = EnvSpec(name="made up", observation=Leaf((3,), np.dtype(np.float32)), action=ACTION)


@pytest.mark.numeric
def test_squashed_density_is_that_of_torch() -> None:
    mean, log_std, noise = torch.randn(3, 50, 4, dtype=torch.float64) / 2
    action, log_prob = squash(mean, log_std, noise)
    expected = distributions.TransformedDistribution(
        distributions.Normal(mean, log_std.exp()), [distributions.TanhTransform()]
    )
    assert torch.allclose(action, (mean + log_std.exp() * noise).tanh())
    assert torch.allclose(log_prob, expected.log_prob(action).sum(1), atol=1e-4, rtol=1e-4)
    far = torch.full((1, 4), 30.0)
    assert torch.isfinite(squash(far, 0 * far, far)[1]).all()


@pytest.mark.numeric
def test_twin_critics_are_two_networks() -> None:
    critics = TwinCritics(7)
    x = torch.randn(6, 7)
    for k, values in enumerate(critics(x)):
        layers: list[Any] = []
        for twin in critics.layers:
            linear = nn.Linear(*twin.weight.shape[1:])
            linear.weight.data, linear.bias.data = twin.weight[k].T, twin.bias[k, 0]
            layers += [linear, nn.ReLU()]
        assert torch.allclose(nn.Sequential(*layers[:-1])(x).squeeze(1), values, atol=1e-5)


def test_actions_are_within_the_bounds_and_random_ones_everywhere() -> None:
    agent = SACConfig().make_agent(NetworkSpec("auto", SPEC, CPU))
    noise, observation = torch.rand(4000, 2).double(), torch.randn(4000, 3)
    ends = torch.tensor([0.0, 1 - 2.0**-53]).double().expand(2, 2)
    low, high = torch.tensor([[-1.0, -3], [2, 5]])
    agent.is_random = True
    drawn = agent.act(observation, noise, slice(0, 4000))
    assert torch.allclose(drawn.mean(0), (low + high) / 2, atol=0.2)
    assert torch.allclose(drawn.std(0), (high - low) / 12**0.5, rtol=0.05)
    agent.is_random = False
    with torch.no_grad():
        agent.model.actor[-1].bias[:2] = torch.tensor([50.0, -50])
    for actions in (drawn, agent.act(observation[:2], ends, slice(0, 2))):
        assert (actions >= low).all() and (actions <= high).all()
    assert agent.greedy().act(observation[:1], ends[:1], slice(0, 1)).tolist() == [[2, -3]]
    unit = agent.unit(torch.tensor([[-1.0, 5], [0.5, 1]]))
    assert torch.allclose(unit, torch.tensor([[-1.0, 1], [0, 0]]))


def test_acting_draws_from_the_policy() -> None:
    agent = SACConfig().make_agent(NetworkSpec("auto", SPEC, CPU))
    noise = ((torch.arange(10_000).double() + 0.5) / 10_000).unsqueeze(1).expand(-1, 2)
    observation = torch.ones(1, 3)
    drawn = agent.unit(agent.act(observation.expand(10_000, 3), noise, slice(0, 10_000)))
    mean, log_std = agent.model.gaussian(observation)
    assert torch.allclose(drawn.atanh().mean(0), mean[0], atol=0.05)
    assert torch.allclose(drawn.atanh().std(0), log_std[0].exp(), rtol=0.05)


def rollout(seed: int, T: int = 4, B: int = 2) -> RolloutTensors:
    rng = np.random.default_rng(seed)
    low, high = ACTION.bounds
    return made_rollout(
        torch.from_numpy(rng.normal(size=(T + 1, B, 3)).astype(np.float32)),
        torch.from_numpy(rng.uniform(low, high, (T, B, 2)).astype(np.float32)),
        torch.from_numpy(rng.normal(size=(T, B)).astype(np.float32)),
        terminated=torch.from_numpy(rng.random((T, B)) < 0.2),
    )


def make(seed: int = 0, spec: EnvSpec = SPEC, **settings: Any) -> tuple[SAC, BoundedAgent]:
    given = {"learning_starts": 12, "buffer_size": 200, "batch_size": 8, "training_intensity": 4.0}
    config = SACConfig(**(given | settings))
    torch.manual_seed(seed)
    agent = config.make_agent(NetworkSpec("auto", spec, CPU))
    return learner_of(config, agent, LearnerSpec(spec, 2, 4, 1)), agent


@pytest.mark.numeric
def test_an_update_is_that_of_three_optimizers() -> None:
    """Of policy, critics and alpha, each with a loss and an Adam of its own."""
    learner, agent = make(training_intensity=1.0)
    agent.model.log_alpha.data.fill_(-1.2)
    first = copy.deepcopy(agent.model)
    target_before = copy.deepcopy(learner._target)
    draw_state = learner._generator.get_state()
    learner.update(rollout(0), 0.0)
    assert not learner.update(rollout(1), 0.0)  # 16 steps, of which 4 count
    metrics = learner.update(rollout(2), 0.0)  # 12 count: one update with 8
    assert metrics["training_intensity"] == pytest.approx(8 / 12)
    draws, noises = torch.Generator(), torch.Generator().manual_seed(1)
    draws.set_state(draw_state)
    step, env = learner.replay.draw_uniformly(8, draws)
    batch = learner.replay.gather(step, env)
    noise = torch.randn(2, 8, 2, generator=noises)

    alpha = first.log_alpha.exp().detach()
    with torch.no_grad():
        action, log_prob = squash(*first.gaussian(batch.next_observation), noise[0])
        behind = target_before(torch.cat((batch.next_observation, action), 1))
        target = batch.reward + batch.discount * (behind.amin(0) - alpha * log_prob)
    optimizers = [
        torch.optim.Adam(parameters, lr=3e-4, eps=1e-8)
        for parameters in (
            first.critics.parameters(),
            first.actor.parameters(),
            [first.log_alpha],
        )
    ]
    seen = torch.cat((batch.observation, agent.unit(batch.action)), 1)
    weight = batch.valid / batch.valid.sum()  # these rollouts do not follow each other
    errors = ((first.critics(seen) - target).square().sum(0) / 2 * weight).sum()
    action, log_prob = squash(*first.gaussian(batch.observation), noise[1])
    judged = first.critics(torch.cat((batch.observation, action), 1)).amin(0)
    losses = [
        errors,
        ((alpha * log_prob - judged) * weight).sum(),
        -(first.log_alpha * (log_prob.detach() - 2) * weight).sum(),
    ]
    gradients = [
        torch.autograd.grad(loss, list(optimizer.param_groups[0]["params"]), retain_graph=True)
        for loss, optimizer in zip(losses, optimizers, strict=True)
    ]
    for optimizer, own in zip(optimizers, gradients, strict=True):
        for parameter, gradient in zip(optimizer.param_groups[0]["params"], own, strict=True):
            parameter.grad = gradient
        optimizer.step()
    for name, parameter in first.named_parameters():
        found = dict(agent.model.named_parameters())[name]
        assert parameter.grad is not None and found.grad is not None
        assert torch.allclose(found.grad, parameter.grad, rtol=1e-3, atol=1e-6), name
        is_clear = parameter.grad.abs() > 1e-3  # Adam's eps is elsewhere, which shows near 0
        assert torch.allclose(found[is_clear], parameter[is_clear], atol=2e-6), name
    pairs = zip(target_before.parameters(), agent.model.critics.parameters(), strict=True)
    for moved, (before, online) in zip(learner._target.parameters(), pairs, strict=True):
        assert torch.allclose(moved, 0.995 * before + 0.005 * online, atol=1e-6)


@pytest.mark.parametrize("twin", [0, 1])
def test_higher_one_of_the_critics_has_no_say(twin: int) -> None:
    learner, agent = make()
    for number in range(3):
        learner.replay.append(rollout(number))
    batch = learner.draw()
    given = batch, learner.noise(2, 8, 2)
    for critics, name in ((learner._target, "critic_loss"), (agent.model.critics, "actor_loss")):
        found = []
        for bias in (1e2, 1e3):
            critics.layers[-1].bias.data[twin] = bias
            found.append(learner.loss(*given)[1][name])
        assert torch.equal(*found)


@pytest.mark.parametrize(("target_entropy", "sign"), [(-20.0, -1), (20.0, 1)])
def test_alpha_moves_the_entropy_to_its_target_and_target_critics_follow(
    target_entropy: float, sign: int
) -> None:
    learner, agent = make(tau=1.0)
    learner._target_entropy = target_entropy
    for number in range(3):
        learner.update(rollout(number), 0.0)
    assert sign * agent.model.log_alpha.item() > 1e-4
    pairs = zip(learner._target.parameters(), agent.model.critics.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_random_actions_end_with_the_first_update_and_alpha_may_be_given() -> None:
    learner, agent = make(alpha=0.2)
    assert agent.is_random
    learner.update(rollout(0), 0.0)
    assert agent.is_random
    for number in range(3):
        learner.update(rollout(number), 0.0)
    assert not agent.is_random
    assert agent.model.log_alpha.exp().item() == pytest.approx(0.2)


def test_learner_goes_on_from_a_state_to_the_bit() -> None:
    whole, agent = make(save_replay=True)
    for number in range(4):
        whole.update(rollout(number), 0.0)
    parted, other = make(1, save_replay=True)
    parted.sync.load_state_dict(whole.sync.state_dict())
    parted.set_state(whole.get_state())
    for number in (4, 5):
        whole.update(rollout(number), 0.0)
        parted.update(rollout(number), 0.0)
    for a, b in zip(agent.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert other.is_random == agent.is_random


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action": discrete(3)}, "actions of made up are integers 0 .. 2; they must be floats"),
        ({"action": {"a": ACTION, "b": discrete(2)}}, "must be floats between finite bounds"),
        ({"action": Leaf((2,), np.dtype(np.float32))}, "must be floats between finite bounds"),
        (
            {"action": Leaf((2,), np.dtype(np.float32), -3e38, 3e38)},
            "must be .* not near the large",
        ),
        ({"observation": Leaf((3, 84, 84), np.dtype(np.uint8))}, "with images, for which it has"),
    ],
)
def test_spaces_that_it_cannot_learn_are_refused(changes: dict[str, Any], message: str) -> None:
    spec = EnvSpec(
        **{"name": "made up", "observation": SPEC.observation, "action": ACTION} | changes
    )
    with pytest.raises(ValueError, match=f"^SAC cannot use this environment: .*{message}"):
        SACConfig().make_agent(NetworkSpec("auto", spec, CPU))


def test_float_with_equal_bounds_keeps_its_value_and_the_rest_learns() -> None:
    action = Leaf((2,), np.dtype(np.float32), (-1, 4), (2, 4))
    spec = replace(SPEC, action=action)
    learner, agent = make(spec=spec)
    before = agent.model.actor[0].weight.clone()
    for number in range(4):
        batch = rollout(number)
        batch.action[..., 1] = 4
        learner.update(batch, 0.0)
    agent.is_random = False
    chosen = agent.act(torch.randn(50, 3), torch.rand(50, 2).double(), slice(0, 50))
    assert (chosen[:, 1] == 4).all() and chosen[:, 0].std() > 0.1
    assert all(each.isfinite().all() for each in agent.model.parameters())
    assert not torch.equal(agent.model.actor[0].weight, before)


@pytest.mark.parametrize("bounds", [(None, None), (0, None), (-3e38, 3e38)], ids=str)
def test_agent_between_bounds_that_are_none_is_refused(bounds: tuple[Any, Any]) -> None:
    action = {"a": ACTION, "b": Leaf((), np.dtype(np.float32), *bounds)}
    with pytest.raises(ValueError, match=r"^actions are .*; here they must be floats between"):
        BoundedAgent(nn.Linear(1, 1), action, lambda *_: _[0], lambda *_: _[0])


def test_mapping_of_actions_is_learned_like_one_array_of_their_numbers() -> None:
    f32, f64 = np.dtype(np.float32), np.dtype(np.float64)
    parts = {"push": Leaf((1,), f32, -1, 2), "turn": {"x": Leaf((), f64, -3, 5)}}
    spec = replace(SPEC, action=parts)
    whole, agent = make()
    torch.manual_seed(0)
    other = whole.config.make_agent(NetworkSpec("auto", spec, CPU))
    parted = learner_of(whole.config, other, LearnerSpec(spec, 2, 4, 1))
    for number in range(4):
        one = rollout(number)
        apart = {"push": one.action[..., :1], "turn": {"x": one.action[..., 1].double()}}
        assert torch.allclose(
            other.unit(map_leaves(lambda x: x[0], apart)), agent.unit(one.action[0])
        )
        whole.update(one, 0.0)
        parted.update(one._replace(action=apart), 0.0)
    assert not other.is_random  # it has learned
    for a, b in zip(agent.model.parameters(), other.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    given = torch.randn(50, 3), torch.rand(50, 2).double(), slice(0, 50)
    expected, found = agent.act(*given), other.act(*given)
    assert found["push"].dtype == torch.float32 and found["turn"]["x"].dtype == torch.float64
    assert torch.allclose(found["push"], expected[:, :1], atol=1e-4)
    assert torch.allclose(found["turn"]["x"].float(), expected[:, 1], atol=1e-4)


def test_flat_observations_hold_every_leaf() -> None:
    mapping = {"a": torch.ones(2, 2, 2, dtype=torch.int64), "b": {"c": torch.zeros(2)}}
    assert flat(mapping).tolist() == [[1, 1, 1, 1, 0]] * 2
    space = {"a": Leaf((2, 2), np.dtype(np.int64)), "b": {"c": Leaf((), np.dtype(np.float32))}}
    assert SoftModel(space, 1, 1.0).actor[0].in_features == 5


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("env", "num_steps"), [("gymnasium:Pendulum-v1", 4000), ("control_envs:SwingInParts", 6000)]
)
def test_sac_learns_pendulum(env: str, num_steps: int, tmp_path: Any) -> None:
    """A policy that does nothing has about -1,200; one that swings it up about -200."""
    from accel_rl.cli.parse import parse_arguments
    from accel_rl.training.train import train

    options = (
        f"algo=sac env={env} total_steps={num_steps} learning_starts=500 batch_size=64 lr=1e-3 "
        "training_intensity=64 num_envs=2 num_groups=1 num_workers=0 evaluation_interval=2000 "
        f"evaluation_steps=2000 run_dir={tmp_path / 'run'}"
    )
    train(parse_arguments(options.split()))
    rows = (tmp_path / "run" / "evaluation.csv").read_text().splitlines()
    names, values = (line.split(",") for line in (rows[0], rows[-1]))
    assert float(dict(zip(names, values, strict=True))["episode_return_raw_mean"]) > -500
