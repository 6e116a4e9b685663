"""The network of each preset for images: its paper's."""

import numpy as np
import pytest
import torch
from tiers import in_tiers

from accel_rl.envs import EnvSpec
from accel_rl.models import QHead, make_model
from accel_rl.presets import PRESETS
from accel_rl.spaces import Leaf, discrete
from accel_rl.training.build import agent_of

NETWORKS = {
    **dict.fromkeys(("a2c", "a3c", "ppo", "appo", "ppo_mujoco"), "a3c"),
    **dict.fromkeys(("a2c_baselines", "ppo_baselines"), "nature"),
    **dict.fromkeys(("paac", "ga3c"), "nips"),
    **dict.fromkeys(("dqn", "async_dqn", "double_dqn", "cat_dqn", "qr_dqn"), "dqn"),
    **dict.fromkeys(("rainbow", "iqn"), "dqn"),
    "btr": "btr",
    "impala": "impala",
    "pqn": "pqn",
}
"""for images, by preset"""


def shapes(model: torch.nn.Module) -> list[tuple[int, ...]]:
    return sorted(tuple(each.shape) for each in model.parameters())


@pytest.mark.parametrize(
    "name", in_tiers(sorted(NETWORKS), "a2c ga3c impala pqn", " ".join(NETWORKS))
)
def test_preset_has_the_network_of_its_paper_for_images(name: str) -> None:
    config, uint8 = PRESETS[name](), np.dtype(np.uint8)
    height, width = map(int, config.atari.observation_size.split("x"))
    spec = EnvSpec(
        name="pong",
        observation=Leaf((4, height, width), uint8),
        action=discrete(6),
    )
    model = agent_of(config, spec, torch.device("cpu")).model
    if NETWORKS[name] in ("dqn", "pqn", "btr"):
        learner = config.learner
        more = getattr(learner, "num_atoms", 1), getattr(learner, "dueling", False)
        more += getattr(learner, "quantiles", None) == "implicit", getattr(learner, "noisy", False)
        expected = make_model(NETWORKS[name], spec.observation, QHead(6, *more))
    else:
        expected = make_model(NETWORKS[name], spec.observation, 6)
    assert shapes(model) == shapes(expected)
