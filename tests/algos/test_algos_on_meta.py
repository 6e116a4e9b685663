"""Replay and updates on the meta device, which has shapes and no data: nothing waits for a value.

What reads one back (``item``, ``cpu``, a mask as index, a branch on a tensor) raises there.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from made_rollouts import learner_of, made_rollout
from recorded_learners import CONFIGS, IMAGES, B, Run, T, rollouts
from tiers import in_tiers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from accel_rl import presets
from accel_rl.agents import HostFlags, RolloutTensors
from accel_rl.algos import LearnerSpec, NetworkSpec
from accel_rl.algos.replay import Priorities, Replay, ReplaySpec
from accel_rl.envs import EnvSpec
from accel_rl.spaces import Leaf, discrete

META = torch.device("meta")
CAT_DQN = {"batch_size": 2048, "learning_starts": 1024, "buffer_size": 100_000}
IMAGE = Leaf((4, 104, 80), np.dtype(np.uint8))


def assert_shape(x: Tensor, *shape: int, dtype: torch.dtype) -> None:
    assert x.device == META and (tuple(x.shape), x.dtype) == (shape, dtype)


def test_replay_on_meta_draws_and_gathers_what_shapes_say() -> None:
    """Through two ends of the ring."""
    num, shape = 8, IMAGES.observation_shape
    spec = ReplaySpec(
        size=60,
        num_envs=B,
        horizon=T,
        observation=IMAGES.observation,
        action=IMAGES.action,
        frame_stack=2,
        n_step=3,
    )
    replay, generator = Replay(spec, META), torch.Generator()
    priorities = Priorities(replay, alpha=0.6, default=1.0)
    for batch in rollouts(META, 6):
        replay.append(batch)
        priorities.follow()
        if replay.high == 0:
            continue
        for draw in (replay.draw_uniformly, lambda *args: priorities.draw(*args)[:2]):
            step, env = draw(num, generator)
            drawn = replay.gather(step, env)
            assert_shape(drawn.observation, num, *shape, dtype=torch.uint8)
            assert_shape(drawn.next_observation, num, *shape, dtype=torch.uint8)
            assert_shape(drawn.action, num, dtype=torch.int64)
            assert_shape(drawn.reward, num, dtype=torch.float32)
            assert_shape(drawn.discount, num, dtype=torch.float32)
            assert_shape(drawn.valid, num, dtype=torch.bool)
        step, env, probability = priorities.draw(num, generator)
        assert_shape(probability, num, dtype=torch.float64)
        priorities.update(step, env, probability.float())


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generators of the CPU for meta, which has none."""

    class Generator(torch.Generator):
        def __new__(cls, *device: torch.device) -> torch.Generator:
            return super().__new__(cls)

    monkeypatch.setattr(torch, "Generator", Generator)


@pytest.mark.usefixtures("generators")
@pytest.mark.parametrize(
    "name",
    in_tiers([name for name in CONFIGS if "bfloat16" not in name], "a2c", " ".join(CONFIGS)),
)
def test_update_on_meta_gives_metrics_without_reading_a_value(name: str) -> None:
    run = Run(name, None, META, model="mlp")
    for i, batch in enumerate(rollouts(META, 3)):
        metrics = run.update(batch, progress=i / 3)
        assert_shape(run.act(batch, seed=i), B, dtype=torch.int64)
    assert metrics.keys() == set(run.learner.metric_names)
    assert {tuple(each.shape) for each in metrics.values()} == {()}
    assert {each.device.type for each in metrics.values()} == {"meta"}


class Counting(TorchDispatchMode):
    """Counts the operations that the device is given: all that are not views or on the host."""

    num = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None):
        results = [each.alias_info for each in operation._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in results)
        found = operation(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves(found) if isinstance(each, Tensor)]
        self.num += not is_view and any(each.device == META for each in tensors)
        return found


@pytest.mark.usefixtures("generators")
@pytest.mark.parametrize(
    ("name", "options", "shape", "most"),
    [("a2c", {}, (5, 128), 150), ("cat_dqn", CAT_DQN, (4, 64), 189)],
    ids=["a2c", "cat_dqn"],
)
def test_iteration_gives_the_device_no_more_operations_than_before(
    name: str,
    options: dict[str, int],
    shape: tuple[int, int],
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eager, on Atari's images; a small batch is bound by the number of its operations on a GPU.

    Lower ``most`` when there are fewer. An iteration of cat_dqn is an append and one update.
    """
    is_autocast = torch.is_autocast_enabled  # knows no meta
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda on: on != "meta" and is_autocast(on))
    env = EnvSpec(name="atari", observation=IMAGE, action=discrete(4), frame_stack=4)
    config = replace(getattr(presets, name)().learner, **options)
    agent = config.make_agent(NetworkSpec("auto", env, META))
    learner = learner_of(config, agent, LearnerSpec(env, shape[1], shape[0], seed=0))
    for i in range(8):
        with Counting() as counting:
            metrics = learner.update(_blank_rollout(*shape), i / 1000)
    assert metrics and counting.num <= most, counting.num


def _blank_rollout(T: int, B: int) -> RolloutTensors:
    observation = torch.zeros(T + 1, B, *IMAGE.shape, dtype=torch.uint8, device=META)
    reward = torch.zeros(T, B, device=META)
    flags = (np.zeros((T, B), np.bool_) for _ in range(3))
    none = np.zeros(0, np.int64)
    host = HostFlags(*flags, final_step=none, final_env=none, follows=True)
    return made_rollout(observation, reward.long(), reward, host=host)
