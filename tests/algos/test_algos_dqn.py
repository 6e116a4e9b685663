"""The Q-learning learner: how often it learns from what, and what it leaves in its agent."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from made_rollouts import learner_of, vectors
from tiers import first_quick
from torch import Tensor

from accel_rl.agents import QAgent, epsilon_greedy
from accel_rl.algos import DQN, DQNConfig, LearnerSpec, NetworkSpec
from accel_rl.algos.replay import ReplaySpec, Transitions
from accel_rl.algos.value_distributions import project
from accel_rl.envs import EnvSpec
from accel_rl.models import QHead, make_model
from accel_rl.parallel import ALONE, FlatParameters, Local, Ranks
from accel_rl.spaces import Leaf, discrete

T, B = 4, 6
CPU = torch.device("cpu")
ENV = EnvSpec(
    name="toy",
    observation=Leaf((3,), np.dtype(np.float32)),
    action=discrete(2),
)


def make(ranks: Ranks = ALONE, env: EnvSpec = ENV, **options: Any) -> tuple[DQN, QAgent, Local]:
    small = {
        "batch_size": 8,
        "learning_starts": 48,
        "buffer_size": 600,
        "target_update_interval": 96,
    }
    config = DQNConfig(**{**small, **options})
    torch.manual_seed(0)
    agent = config.make_agent(NetworkSpec("auto", env, CPU))
    assert isinstance(agent, QAgent)
    learner = learner_of(config, agent, LearnerSpec(env, B, T, 0, ranks))
    return learner, agent, learner.sync


def transitions(action: Tensor, **fields: Any) -> Transitions:
    """Valid ones with rewards of 0 and a discount of 1/2, unless ``fields`` say otherwise."""
    N = len(action)
    usual: dict[str, Any] = {"reward": torch.zeros(N), "discount": torch.full((N,), 0.5)}
    usual |= {"valid": torch.ones(N, dtype=torch.bool), "step": torch.arange(N)}
    usual["env"] = torch.zeros(N, dtype=torch.int64)
    return Transitions(action=action, **(usual | fields))


def batches(seed: int = 0, stack: int = 1) -> Any:
    """Endless random rollouts, of stacks of frames if ``stack`` says so; one step in ten ends."""
    g = torch.Generator().manual_seed(seed)
    while True:
        yield vectors(T, B, *([stack] if stack > 1 else []), 3, generator=g)


def test_learner_of_several_counts_the_steps_of_all_and_learns_from_its_own() -> None:
    """Without waiting for each other: this one starts when the others have taken 1,000 steps."""
    learner, agent, sync = make(Ranks(1, 2), learning_starts=200, buffer_size=1200)
    source = batches()
    assert learner.replay.spec.size == 600
    steps = 1000
    for iteration in range(1, 11):
        steps += 3 * T * B  # the other is twice as fast
        learner.update(next(source), 0.0, steps)
        assert sync.num_updates == iteration * T * B  # batch 8, intensity 8
        is_renewed = steps // 96 > (steps - 3 * T * B) // 96
        assert torch.equal(learner._target.parameter, sync.parameters.parameter) == is_renewed
    expected = 1 - 0.9 * steps / learner.config.epsilon_steps
    assert agent.epsilon[-1].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("prioritized", [False, True])
def test_learner_that_is_late_waits_until_there_is_something_to_draw(prioritized: bool) -> None:
    """The others have taken 1,000 steps before its first rollout, which has no whole stack."""
    env = replace(ENV, observation=Leaf((4, 3), np.dtype(np.float32)), frame_stack=4)
    options: Any = {"learning_starts": 200, "buffer_size": 1200, "prioritized": prioritized}
    learner, _, sync = make(Ranks(1, 2), env, **options)
    for iteration, batch in zip(range(2), batches(stack=4), strict=False):
        learner.update(batch, 0.0, 1000 + iteration * T * B)
        assert sync.num_updates == iteration * T * B  # batch 8, intensity 8
        assert sync.parameters.parameter.isfinite().all()


@pytest.mark.parametrize("intensity", first_quick([0.7, 4.0, 1.0]))
def test_training_intensity_holds_exactly_also_where_updates_do_not_divide(
    intensity: float,
) -> None:
    learner, _, sync = make(training_intensity=intensity)
    source = batches()
    for iteration in range(1, 25):
        metrics = learner.update(next(source), progress=0.0)
        learning_steps = max(0, iteration * T * B - 48)
        assert sync.num_updates == int(learning_steps * intensity / 8)
        if metrics:
            expected = sync.num_updates / learning_steps  # updates for each step
            assert metrics["replay_ratio"].item() == pytest.approx(expected)
            assert metrics["training_intensity"].item() == pytest.approx(8 * expected)  # batch 8
            assert sorted(metrics) == sorted(learner.metric_names)


def test_power_of_importance_weights_rises_to_one_with_the_steps() -> None:
    learner, _, _ = make(
        prioritized=True, priority_beta=0.4, priority_beta_steps=96, training_intensity=1
    )
    loss, draw = learner.loss, learner._priorities.draw
    weights, drawn = [], []
    learner.loss = lambda batch, weight: (weights.append(weight), loss(batch, weight))[1]
    learner._priorities.draw = lambda *given: (drawn.append(draw(*given)), drawn[-1])[1]
    for batch, beta in zip(batches(), (0.55, 0.7, 0.85, 1.0, 1.0), strict=False):
        learner.update(batch, 0.0)
        learner.learn(0.0)
        weight, probability = weights[-1], drawn[-1][2]
        assert torch.allclose(weight, (probability.min() / probability).pow(beta).float())
    assert weight.unique().numel() > 1


@pytest.mark.slow
def test_steps_whose_final_observation_is_gone_lose_their_priority_when_drawn(monkeypatch) -> None:
    monkeypatch.setattr(ReplaySpec, "num_finals", T * B)  # of 4 of the 25 rollouts that fit
    learner, _, _ = make(prioritized=True)
    truncated = torch.zeros(T, B, dtype=torch.bool)
    truncated[-1] = True
    for _, batch in zip(range(40), batches(), strict=False):
        finals = {
            "final_observation": batch.observation[-1],
            "final_step": torch.full((B,), T - 1),
            "final_env": torch.arange(B),
        }
        terminated = torch.zeros_like(truncated)
        learner.update(batch._replace(terminated=terminated, truncated=truncated, **finals), 0.0)
    step, env, _ = learner._priorities.draw(4_000, torch.Generator())
    num_lost = int((~learner.replay.gather(step, env).valid).sum())
    assert num_lost < 300  # of 4,000; 859 if they kept their priorities


def test_time_limit_may_end_the_task_but_no_step_that_was_not_taken() -> None:
    learner, _, _ = make(bootstrap_on_truncation=False)
    source = batches()
    batch = next(source)._replace(terminated=torch.zeros(T, B, dtype=torch.bool))
    batch.truncated[1, 2:4] = True
    batch.valid[1, 3] = False
    learner.update(batch, 0.0)
    learner.update(next(source), 0.0)
    drawn = learner.replay.gather(torch.ones(B, dtype=torch.int64), torch.arange(B))
    assert drawn.valid.tolist() == [True, True, True, False, True, True]
    assert drawn.discount[drawn.valid].tolist() == pytest.approx([0.99, 0.99, 0, 0.99, 0.99])


def test_nothing_is_learned_before_learning_starts() -> None:
    learner, _, sync = make(learning_starts=72)
    source = batches()
    before = sync.parameters.parameter.clone()
    for _ in range(3):
        assert learner.update(next(source), progress=0.0) == {}
    assert torch.equal(sync.parameters.parameter, before)
    assert learner.update(next(source), progress=0.0)
    assert not torch.equal(sync.parameters.parameter, before)


def test_target_network_is_copied_every_so_many_steps_and_never_trained() -> None:
    learner, _, sync = make()
    source = batches()
    first = learner._target.parameter.clone()
    for iteration in range(1, 9):
        learner.update(next(source), progress=0.0)
        is_online = torch.equal(learner._target.parameter, sync.parameters.parameter)
        if iteration < 4:
            assert torch.equal(learner._target.parameter, first)
        else:
            assert is_online == (iteration % 4 == 0)  # 4 * 24 = 96 steps


def test_epsilon_falls_with_the_steps_and_evaluations_have_their_own() -> None:
    learner, agent, _ = make(epsilon_steps=96, epsilon_final=0.2, epsilon_evaluation=0.07)
    source = batches()
    assert agent.epsilon.tolist() == [1.0]
    found = []
    for _ in range(5):
        learner.update(next(source), progress=0.0)
        found.append(agent.epsilon.item())
    assert found == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.2])
    other = learner.config.evaluating(agent)
    assert isinstance(other, QAgent)
    assert other.epsilon.item() == pytest.approx(0.07) and agent.epsilon.item() != 0.07


def test_greedy_agent_takes_the_action_of_the_largest_value_whatever_the_uniform() -> None:
    _, agent, _ = make()  # its epsilon is 1
    observation = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    noise = torch.linspace(0, 0.99, 64, dtype=torch.float64)
    best = agent.q_values(agent.model(observation)).argmax(1)
    assert torch.equal(agent.greedy().act(observation, noise, slice(0, 64)), best)
    assert agent.epsilon.item() == 1.0


def test_each_environment_may_have_an_epsilon_of_its_own() -> None:
    learner, agent, _ = make(epsilon_per_env=True, epsilon_steps=24, epsilon_final=0.4)
    learner.update(next(batches()), progress=0.0)
    expected = [0.4 ** (1 + 7 * i / 5) for i in range(B)]
    assert agent.epsilon.tolist() == pytest.approx(expected, abs=1e-6)
    noise = torch.full((3,), 0.02, dtype=torch.float64)  # only the first has so large an epsilon
    best = agent.q_values(agent.model(torch.zeros(3, 3))).argmax(1)
    found = agent.act(torch.zeros(3, 3), noise, slice(3, 6))
    assert torch.equal(found, best)
    assert agent.act(torch.zeros(3, 3), noise, slice(0, 3))[0].item() == 0


def test_epsilon_of_each_environment_reaches_its_end_and_the_mean_is_logged() -> None:
    learner, agent, _ = make(epsilon_per_env=True, epsilon_steps=48, epsilon_final=0.1)
    source = batches()
    for _ in range(3):
        metrics = learner.update(next(source), progress=0.0)
    expected = [0.1 ** (1 + 7 * i / 5) for i in range(B)]
    assert agent.epsilon.tolist() == pytest.approx(expected, rel=1e-6)  # the last is 1e-8
    assert metrics["epsilon"].item() == pytest.approx(sum(expected) / B)


@pytest.mark.parametrize("num_sharing", [2, 1], ids=["in-step", "store"])
def test_learners_in_step_spread_epsilon_over_the_environments_of_all(num_sharing: int) -> None:
    """Each of two has half of the environments; those of a store have each its own."""
    config = DQNConfig(
        learning_starts=72,
        buffer_size=600,
        epsilon_per_env=True,
        epsilon_steps=24,
        epsilon_final=0.4,
    )
    found: list[float] = []
    for rank in range(2):
        agent = config.make_agent(NetworkSpec("auto", ENV, CPU))
        assert isinstance(agent, QAgent)
        sync = Local(FlatParameters(agent.model), config.rule, None)
        sync.num_sharing = num_sharing
        learner = config.make_learner(agent, sync, LearnerSpec(ENV, B // 2, T, 0, Ranks(rank, 2)))
        whole = next(batches())
        half = whole.map(lambda x: x[:, : B // 2] if x.ndim > 1 else x)
        learner.update(half, 0.0, steps=24)
        found += agent.epsilon.tolist()
    in_step = [0.4 ** (1 + 7 * i / 5) for i in range(6)]
    of_each = [0.4 ** (1 + 7 * i / 2) for i in range(3)]
    expected = in_step if num_sharing == 2 else of_each * 2
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "options",
    first_quick(
        [
            {},
            {"double": True, "dueling": True, "n_step": 3},
            {"prioritized": True, "num_atoms": 11, "optimizer": "adam"},
        ]
    ),
    ids=["dqn", "double-dueling-3-step", "prioritized-categorical"],
)
def test_learner_goes_on_from_a_state_with_its_replay_to_the_bit(options: dict[str, Any]) -> None:
    learner, _, sync = make(save_replay=True, **options)
    source = batches()
    for _ in range(6):
        learner.update(next(source), progress=0.1)
    other, agent, other_sync = make(save_replay=True, **options)
    other.set_state(learner.get_state())
    other_sync.load_state_dict(sync.state_dict())
    for _ in range(6):
        batch = next(source)
        one, two = learner.update(batch, 0.2), other.update(batch, 0.2)
        assert one and all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(sync.parameters.parameter, other_sync.parameters.parameter)
    assert torch.equal(agent.epsilon, learner.agent.epsilon)


def test_learner_without_its_replay_fills_it_before_it_learns_again() -> None:
    learner, _, _ = make()
    source = batches()
    for _ in range(6):
        learner.update(next(source), progress=0.0)
    other, _, _ = make()
    other.set_state(learner.get_state())
    for _ in range(2):  # 48 steps
        assert other.update(next(source), progress=0.0) == {}
    assert other.update(next(source), progress=0.0)


def test_prioritized_draws_move_with_the_errors() -> None:
    learner, _, _ = make(prioritized=True, training_intensity=8.0)
    assert learner._priorities is not None
    source = batches()
    learner.update(next(source), progress=0.0)
    assert learner._priorities.get_state()["leaves"].max() == 1.0  # as large as errors may be
    for _ in range(7):
        learner.update(next(source), progress=0.0)
    leaves = learner._priorities.get_state()["leaves"]
    written = leaves[(leaves > 0) & (leaves != 1.0)]
    assert len(written) > 20 and (written > 0).all() and (written < 1).all()


@pytest.mark.numeric
def test_loss_of_a_transition_goes_with_its_importance_weight_and_is_0_where_not_valid() -> None:
    learner, agent, _ = make(prioritized=True, gamma=0.5)
    g = torch.Generator().manual_seed(0)
    batch = transitions(
        observation=torch.randn(5, 3, generator=g),
        action=torch.randint(0, 2, (5,), generator=g),
        reward=torch.randn(5, generator=g),
        next_observation=torch.randn(5, 3, generator=g),
        valid=torch.tensor([True, True, False, True, True]),
    )
    weight = torch.rand(5, generator=g)
    loss, metrics, priority = learner.loss(batch, weight)
    q_value = agent.model(batch.observation).squeeze(2)
    best = agent.model(batch.next_observation).squeeze(2).max(1).values  # the target is a copy
    total = q_sum = 0.0
    for i in range(5):
        error = batch.reward[i] + 0.5 * best[i] - q_value[i, batch.action[i]]
        size = abs(error.item())
        huber = size**2 / 2 if size < 1 else size - 0.5
        expected = weight[i].item() * huber / 4 if batch.valid[i] else 0.0
        assert loss[i].item() == pytest.approx(expected, rel=1e-5)
        surprise = min(size, 1.0) if batch.valid[i] else 0.0
        assert priority[i].item() == pytest.approx(surprise, rel=1e-5)
        total += expected
        q_sum += q_value[i].max().item() * batch.valid[i].item()
    assert metrics["loss"].item() == pytest.approx(total, rel=1e-5)
    assert metrics["q_value"].item() == pytest.approx(q_sum / 4, rel=1e-5)


@pytest.mark.numeric
def test_rescaling_leaves_targets_that_neither_reward_nor_discount_changes() -> None:
    losses = []
    for rescales in (False, True):
        learner, _, _ = make(value_rescaling=rescales)
        g = torch.Generator().manual_seed(1)
        learner._target.parameter.normal_(std=0.2, generator=g)
        batch = transitions(
            observation=torch.randn(5, 3, generator=g),
            action=torch.randint(0, 2, (5,), generator=g),
            discount=torch.ones(5),
            next_observation=torch.randn(5, 3, generator=g),
        )
        losses.append(learner.loss(batch)[0])
    assert losses[0].max() > 0.01 and torch.allclose(*losses, rtol=1e-3, atol=1e-4)


MASK = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1], [0, 1, 1, 0]])
MASKED_ENV = EnvSpec(
    name="masked toy",
    observation={"observation": ENV.observation, "action_mask": Leaf((4,), np.dtype(np.int8))},
    action=discrete(4),
)


@pytest.mark.numeric
@pytest.mark.parametrize("double", [False, True], ids=["dqn", "double"])
def test_target_is_the_value_of_the_best_action_that_the_mask_allows(double: bool) -> None:
    """0 where it allows none, as at a time limit, even if the return goes on."""
    learner, agent, sync = make(env=MASKED_ENV, double=double)
    g = torch.Generator().manual_seed(2)
    learner._target.parameter.normal_(generator=g)
    sync.parameters.parameter.data.normal_(generator=g)
    seen, following = torch.randn(2, 5, 3, generator=g).unbind()
    batch = transitions(
        observation={"observation": seen, "action_mask": 1 - MASK.to(torch.int8)},
        action=torch.tensor([1, 0, 2, 3, 1]),
        reward=torch.randn(5, generator=g),
        next_observation={"observation": following, "action_mask": MASK.to(torch.int8)},
    )
    loss, metrics, _ = learner.loss(batch)
    q_value = agent.model(seen).squeeze(2)
    target_value = learner._target_model(following).squeeze(2)
    online_value = agent.model(following).squeeze(2)
    choosing, other = (online_value, target_value) if double else (target_value, online_value)
    best_seen, differs, disagrees = 0.0, False, False
    for i in range(5):
        allowed = [a for a in range(4) if MASK[i, a]]
        value = 0.0
        if allowed:
            best = max(allowed, key=lambda a: choosing[i, a].item())
            value = target_value[i, best].item()
            differs |= best != choosing[i].argmax().item()
            disagrees |= best != max(allowed, key=lambda a: other[i, a].item())
        size = abs(batch.reward[i].item() + 0.5 * value - q_value[i, batch.action[i]].item())
        expected = (size - 0.5 if size > 1 else size**2 / 2) / 5
        assert loss[i].item() == pytest.approx(expected, rel=1e-4)
        best_seen += max(q_value[i, a].item() for a in range(4) if not MASK[i, a]) / 5
    assert differs and disagrees
    assert metrics["q_value"].item() == pytest.approx(best_seen, rel=1e-4)


@pytest.mark.numeric
@pytest.mark.parametrize("double", [False, True], ids=["c51", "double"])
def test_target_distribution_is_that_of_the_best_action_that_the_mask_allows(double: bool) -> None:
    atoms = {"num_atoms": 5, "v_min": -2.0, "v_max": 2.0}
    learner, agent, sync = make(env=MASKED_ENV, double=double, **atoms)
    g = torch.Generator().manual_seed(0)
    for flat in (learner._target, sync.parameters):
        flat.parameter.normal_(generator=g)
    following = torch.randn(5, 3, generator=g)
    batch = transitions(
        observation={"observation": torch.zeros(5, 3), "action_mask": MASK},
        action=torch.zeros(5, dtype=torch.int64),
        next_observation={"observation": following, "action_mask": MASK},
    )
    loss, _, _ = learner.loss(batch)
    logits = learner._target_model(following)
    log_prob = agent.model(torch.zeros(1, 3))[0, 0].log_softmax(0)
    choices = [
        each.softmax(2) @ torch.linspace(-2, 2, 5) for each in (logits, agent.model(following))
    ]
    means, others = choices[::-1] if double else choices
    allowed, other = (each.masked_fill(MASK == 0, -1e9).argmax(1) for each in (means, others))
    is_any = MASK.any(1)
    assert (allowed != other)[is_any].any() and (allowed != means.argmax(1))[is_any].any()
    for i in range(5):
        best = int(allowed[i])
        moved = 0.5 if is_any[i] else 0.0
        target = project(
            torch.zeros(1), torch.full((1,), moved), logits[i, [best]].softmax(1), agent.support
        )[0]
        expected = -(target * log_prob).sum().item() / 5
        assert loss[i].item() == pytest.approx(expected, rel=1e-5)


def test_epsilon_greedy_takes_any_action_alike_and_else_the_best() -> None:
    q_value = torch.tensor([[0.0, 2.0, 1.0, -1.0]]).expand(10_000, -1)
    noise = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    action = epsilon_greedy(q_value, noise, torch.tensor([0.4]))
    assert (action[4_000:] == 1).all()
    assert torch.bincount(action[:4_000], minlength=4).tolist() == [1_000] * 4
    assert (epsilon_greedy(q_value, noise, torch.tensor([0.0])) == 1).all()
    assert torch.bincount(epsilon_greedy(q_value, noise, torch.ones(1))).tolist() == [2_500] * 4


def dueling_model() -> Any:
    torch.manual_seed(0)
    shape = (4, 104, 80)
    return make_model("dqn", Leaf(shape, np.dtype(np.uint8)), QHead(3, 5, True))


@pytest.mark.numeric
def test_dueling_output_is_value_plus_advantage_less_its_mean_over_actions() -> None:
    model = dueling_model()
    image = torch.randint(0, 256, (2, 4, 104, 80), dtype=torch.uint8)
    outputs: list[Tensor] = []
    for stream in (model.heads.value, model.heads.advantage):
        stream.register_forward_hook(lambda *args: outputs.append(args[2]))
    found = model(image)
    value, advantage = outputs[0], outputs[1].view(2, 3, 5)
    for n in range(2):
        for k in range(5):
            mean = sum(advantage[n, a, k].item() for a in range(3)) / 3
            for a in range(3):
                expected = value[n, k].item() + advantage[n, a, k].item() - mean
                assert found[n, a, k].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.numeric
def test_dueling_scales_the_gradient_into_the_convolutions_alone(monkeypatch) -> None:
    image = torch.randint(0, 256, (2, 4, 104, 80), dtype=torch.uint8)
    gradients = []
    for scale in (None, 1.0):
        if scale is not None:
            monkeypatch.setattr("accel_rl.models.q_value.QHeads.gradient_scale", scale)
        model = dueling_model()
        model(image).square().sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        factor = 0.5**0.5 if "convs" in name else 1.0
        torch.testing.assert_close(gradient, factor * gradients[1][name], rtol=1e-4, atol=1e-6)


LONG_STACK = replace(ENV, observation=Leaf((300, 3), np.dtype(np.float32)), frame_stack=300)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_starts": 10}, "learning_starts is 10; .* it must be at least 36"),
        (
            {"buffer_size": 24, "learning_starts": 24},
            "buffer_size is 24; .* it must be at least 36",
        ),
        (
            {"buffer_size": 71, "learning_starts": 71, "ranks": Ranks(1, 2)},
            rf"is 71; with {2 * B} .* it must be at least 72",
        ),
        (
            {"buffer_size": 9000, "learning_starts": 9000, "env": LONG_STACK},
            "frame_stack is 300; .* stacks of up to 256 frames",
        ),
    ],
)
def test_replay_that_does_not_fit_the_rollouts_is_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_replays_of_learners_of_one_machine_must_fit_together(monkeypatch) -> None:
    small = {"learning_starts": 200, "buffer_size": 400_000}
    part = make(Ranks(0, 4, 0, 1), **small)[0].replay.spec.nbytes
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=3 * part))
    make(Ranks(2, 4, 2, 3), **small)
    with pytest.raises(ValueError, match=r"4 learners' parts .* for 4 of them") as refused:
        make(Ranks(0, 4, 0, 4), **small)
    advised = re.search(r"use buffer_size=(\d+) or less", str(refused.value))
    assert advised is not None and 250_000 < int(advised[1]) <= 300_000
    make(Ranks(0, 4, 0, 4), **small | {"buffer_size": int(advised[1])})
