"""Running moments, and what is learned from normalized rollouts."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from made_rollouts import made_rollout
from torch.distributed import HashStore

from accel_rl.agents import Normalizer, PolicyAgent
from accel_rl.algos import A2CConfig, LearnerSpec, PPOConfig
from accel_rl.algos.normalization import Moments, Normalization, normalized_leaves
from accel_rl.envs.base import EnvSpec
from accel_rl.models import make_model
from accel_rl.parallel import Ranks, Running, Team, share_running
from accel_rl.spaces import Leaf, discrete

FLOATS = Leaf((3,), np.dtype(np.float32))
NETWORK = torch.nn.Identity()
ALONE: Any = SimpleNamespace(
    sum=lambda x: x,
    running=lambda name, value: Running(value),
    parameters=SimpleNamespace(parameter=torch.zeros(1)),
)


def make(config: Any, num_envs: int = 2) -> tuple[Normalization, PolicyAgent]:
    agent = PolicyAgent(make_model("mlp", Leaf((3,), np.dtype(np.float32)), 4))
    spec = EnvSpec(name="made up", observation=FLOATS, action=discrete(4))
    normalized = Normalization(
        agent,
        ALONE,
        LearnerSpec(spec, num_envs, 5, 0),
        observation=config.normalize_observation,
        reward=config.normalize_reward,
        gamma=config.gamma,
    )
    return normalized, agent


def rollout(seed: int, normalizer: Normalizer | None = None, T: int = 5, B: int = 2) -> Any:
    rng = np.random.default_rng(seed)
    ended = torch.from_numpy(rng.random((T, B)) < 0.3)
    return made_rollout(
        torch.from_numpy(rng.normal(3, 2, (T + 1, B, 3)).astype(np.float32)),
        torch.from_numpy(rng.integers(4, size=(T, B))),
        torch.from_numpy(rng.normal(1, 5, (T, B)).astype(np.float32)),
        terminated=ended,
        valid=torch.from_numpy(rng.random((T, B)) < 0.8),
        normalizer=normalizer,
    )


def test_moments_are_those_of_all_samples_at_once() -> None:
    rng, moments = np.random.default_rng(0), Moments("x", (3,), ALONE)
    assert moments.mean.tolist() == [0] * 3 and moments.variance.tolist() == [1] * 3
    kept = []
    for n in (0, 1, 7, 0, 30):
        x, valid = rng.normal(1e4, 2, (n, 3)), rng.random(n) < 0.7
        moments.add(torch.from_numpy(x), torch.from_numpy(valid))
        kept.append(x[valid])
    everything = np.concatenate(kept)
    assert moments.count == len(everything)
    assert np.allclose(moments.mean, everything.mean(0), rtol=1e-12)
    assert np.allclose(moments.variance, everything.var(0), rtol=1e-8)


def test_learners_with_a_store_share_moments_and_lose_no_sample() -> None:
    store, moments = HashStore(), []
    for rank in range(2):
        team = Team(Ranks(rank, 2, rank, 2), store, 5.0)
        sync: Any = SimpleNamespace(**vars(ALONE))
        sync.running = partial(share_running, team)
        moments.append(Moments("x", (3,), sync))
    first, second = moments
    rng, kept = np.random.default_rng(0), []
    for n, learner in zip((40, 7, 1, 30), (first, second, second, first), strict=True):
        x = rng.normal(50, 2, (n, 3))
        learner.add(torch.from_numpy(x), torch.ones(n, dtype=torch.bool))
        kept.append(x)
    everything = np.concatenate(kept)
    assert first.count == 78 and second.count == 48  # as each last saw them
    assert np.allclose(first.mean, everything.mean(0), rtol=1e-12)
    assert np.allclose(first.variance, everything.var(0), rtol=1e-10)
    saved = second.get_state()
    assert saved["count"] == 78 and np.allclose(saved["mean"], everything.mean(0))

    second.set_state({name: torch.zeros_like(each) for name, each in saved.items()})
    assert first.get_state()["count"] == 78  # the first learner's checkpoint counts
    first.set_state({**saved, "count": torch.tensor(5.0, dtype=torch.float64)})
    second.add(torch.zeros(2, 3), torch.tensor([True, False]))
    assert second.count == 6


def test_rollouts_are_learned_from_with_the_moments_that_acted() -> None:
    normalization, agent = make(PPOConfig(normalize_observation=True))
    first = agent.normalizer
    assert first is not None and first.mean["observation"].tolist() == [0] * 3
    raw = rollout(0, first)
    taken = normalization.take(raw)
    assert torch.equal(taken.observation, raw.observation.clamp(-10, 10))  # nothing was known
    assert taken.normalizer is None
    second = agent.normalizer
    seen = raw.observation[:5][raw.valid].double().numpy()
    assert second is not None
    assert np.allclose(second.mean["observation"], seen.mean(0), rtol=1e-6)
    assert np.allclose(second.scale["observation"], 1 / seen.std(0), rtol=1e-6)
    behind = rollout(1, first)  # collected before the moments changed
    assert torch.equal(normalization.take(behind).observation, behind.observation.clamp(-10, 10))
    now = rollout(2, second)
    expected = (now.observation.double().numpy() - seen.mean(0)) / seen.std(0)
    found = normalization.take(now).observation
    assert np.allclose(found, expected.clip(-10, 10), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("offset", [0, 2**24, 2**40], ids=["0", "2**24", "2**40"])
def test_observations_far_from_zero_stay_different(offset: int, dtype: torch.dtype) -> None:
    """Two numbers one deviation from their mean; and a constant, which is 0."""
    normalization, agent = make(PPOConfig(normalize_observation=True))
    step = 2 ** max(0, 41 - 24) if dtype == torch.float32 else 2  # that float32 can hold
    raw = torch.full((6, 2, 3), offset, dtype=dtype)
    raw[:, 0, 0] += step
    raw[..., 1], raw[..., 2] = offset, 10 * offset
    everything = rollout(0, agent.normalizer)._replace(
        observation=raw, valid=torch.ones(5, 2, dtype=torch.bool)
    )
    normalization.take(everything)
    assert agent.normalizer is not None
    found = agent.normalizer(raw)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[:, 0, 0], torch.ones(6), rtol=0, atol=1e-3)
    torch.testing.assert_close(found[:, 1, 0], -torch.ones(6), rtol=0, atol=1e-3)
    torch.testing.assert_close(found[..., 1:], torch.zeros(6, 2, 2), rtol=0, atol=0.1)


def test_agent_acts_on_normalized_observations() -> None:
    agent = PolicyAgent(make_model("mlp", Leaf((3,), np.dtype(np.float32)), 4))
    observation, noise = torch.randn(50, 3) * 5 + 2, torch.rand(50).double()
    mean, scale = torch.tensor([2.0, 2, 2]), torch.tensor([0.2, 0.2, 0.2])
    plain = agent.act((observation - mean) * scale, noise, slice(0, 50))
    agent.normalizer = Normalizer({"observation": mean}, {"observation": scale})
    assert torch.equal(agent.act(observation, noise, slice(0, 50)), plain)
    greedy = agent.greedy().act(observation, noise, slice(0, 50))
    output = agent.evaluate(agent.normalizer(observation))
    assert torch.equal(greedy, output.logits.argmax(1))
    assert agent.normalizer(torch.tensor([-60.0, 3, 60])).tolist() == pytest.approx([-10, 0.2, 10])


def test_rewards_are_divided_by_the_deviation_of_running_sums() -> None:
    gamma = 0.9
    normalization, _ = make(A2CConfig(normalize_reward=True, gamma=gamma))
    running, sums = np.zeros(2), []
    for number in range(3):
        batch = rollout(number)
        for t in range(5):
            running = running * gamma + batch.reward[t].double().numpy()
            sums += running[batch.valid[t].numpy()].tolist()
            running = running * ~(batch.terminated[t] | batch.truncated[t]).numpy()
        expected = (batch.reward.double() / np.std(sums)).clamp(-10, 10)
        assert torch.allclose(normalization.take(batch).reward.double(), expected, rtol=1e-5)


def test_state_goes_on_to_the_bit() -> None:
    config = PPOConfig(normalize_observation=True, normalize_reward=True)
    whole, agent = make(config)
    whole.take(rollout(0, agent.normalizer))
    parted, other = make(config)
    parted.set_state(whole.get_state())
    for number in (1, 2):
        a = whole.take(rollout(number, agent.normalizer))
        b = parted.take(rollout(number, other.normalizer))
        assert torch.equal(a.observation, b.observation) and torch.equal(a.reward, b.reward)


def test_images_and_masks_are_left_as_they_are() -> None:
    image = Leaf((3, 8, 8), np.dtype(np.uint8), 0, 255)
    mask = Leaf((4,), np.dtype(np.bool_))
    leaves = normalized_leaves({"camera": image, "action_mask": mask, "speed": FLOATS}, NETWORK)
    assert list(leaves) == ["speed"]
    with pytest.raises(ValueError, match="normalize_observation=true is for numbers, and obs"):
        normalized_leaves(image, NETWORK)
    floats = Leaf((3, 44, 44), np.dtype(np.float32), 0, 255)
    assert list(normalized_leaves({"camera": floats, "speed": FLOATS}, NETWORK)) == ["speed"]
    with pytest.raises(ValueError, match="observations are pictures, which networks scale"):
        normalized_leaves(floats, make_model("auto", floats, 2))
    assert list(normalized_leaves(floats, make_model("mlp", floats, 2))) == ["observation"]
    small = Leaf((3, 5, 5), np.dtype(np.float32), 0, 1)
    assert list(normalized_leaves({"board": small}, NETWORK)) == ["board"]


def test_leaf_of_an_inner_mapping_is_normalized_by_its_own_moments() -> None:
    space = {"inner": {"speed": FLOATS, "action_mask": FLOATS}, "speed": FLOATS}
    assert list(normalized_leaves(space, NETWORK)) == ["inner.speed", "inner.action_mask", "speed"]
    one = torch.ones(3, dtype=torch.float64)
    means = {"inner.speed": 2 * one, "speed": -one}
    normalizer = Normalizer(means, dict.fromkeys(means, one.float()))
    x = torch.zeros(1, 3)
    found = normalizer({"inner": {"speed": x, "kept": x}, "speed": x})
    assert torch.equal(found["inner"]["speed"], x - 2)
    assert torch.equal(found["inner"]["kept"], x)
    assert torch.equal(found["speed"], x + 1)


def test_integers_that_name_something_are_normalized_only_alone() -> None:
    """Beside others a network takes them as indicators of their values."""
    names = {"direction": discrete(4), "speed": FLOATS, "far": Leaf((), np.dtype(np.int32))}
    assert list(normalized_leaves(names, NETWORK)) == ["speed", "far"]
    assert list(normalized_leaves(discrete(4), NETWORK)) == ["observation"]
    assert list(normalized_leaves({"direction": FLOATS, "kind": discrete(3)}, NETWORK)) == [
        "direction"
    ]
    assert normalized_leaves({"kind": discrete(3)}, NETWORK) == {}
    masked = {"observation": discrete(4), "action_mask": Leaf((4,), np.dtype(np.bool_))}
    assert list(normalized_leaves(masked, NETWORK)) == ["observation"]
