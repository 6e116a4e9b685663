"""Replay and updates on the meta device, which has shapes and no data: nothing waits for a value.

What reads one back (``item``, ``cpu``, a mask as index, a branch on a tensor) raises there.
"""

import pytest
import torch
from captured_learners import CONFIGS, IMAGES, B, Run, T, rollouts
from torch import Tensor

from accel_rl.algos.replay import Priorities, Replay, ReplaySpec
from accel_rl.capture import EAGER

META = torch.device("meta")


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


@pytest.mark.parametrize("name", [name for name in CONFIGS if "bfloat16" not in name])
def test_update_on_meta_gives_metrics_without_reading_a_value(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Generator(torch.Generator):
        def __new__(cls, *device: torch.device) -> torch.Generator:  # meta has none
            return super().__new__(cls)

    monkeypatch.setattr(torch, "Generator", Generator)
    run = Run(name, EAGER, META, model="mlp")
    for i, batch in enumerate(rollouts(META, 3)):
        metrics = run.update(batch, progress=i / 3)
        assert_shape(run.act(batch, seed=i), B, dtype=torch.int64)
    assert metrics.keys() == set(run.learner.metric_names)
    assert {tuple(each.shape) for each in metrics.values()} == {()}
    assert {each.device.type for each in metrics.values()} == {"meta"}
