"""The network of each preset: its paper's for images, one that fits for anything else."""

import gc

import numpy as np
import pytest
import torch
from saved_runs import quiet, undrawn
from tiers import in_tiers

from accel_rl.cli.parse import parse_arguments
from accel_rl.envs import EnvSpec
from accel_rl.models import QHead, make_model
from accel_rl.presets import PRESETS
from accel_rl.spaces import Leaf, discrete
from accel_rl.training.build import agent_of
from accel_rl.training.train import train

NETWORKS = {
    **dict.fromkeys(("a2c", "a3c", "ppo", "appo", "ppo_mujoco"), "a3c"),
    **dict.fromkeys(("a2c_baselines", "ppo_baselines"), "nature"),
    **dict.fromkeys(("paac", "ga3c"), "nips"),
    **dict.fromkeys(("dqn", "async_dqn", "double_dqn", "cat_dqn"), "dqn"),
    "rainbow": "dqn",
    "impala": "impala",
    "pqn": "pqn",
}
"""for images, by preset"""

TINY = {
    "a2c": "num_envs=2 horizon=10 total_steps=60",
    "ga3c": "num_envs=2 num_groups=2 total_steps=60 min_training_batch=5 tuner=false",
    "ppo": "num_envs=2 horizon=32 minibatch_size=32 total_steps=128",
    "pqn": "num_envs=4 horizon=16 minibatch_size=32 total_steps=128",
    "dqn": "sampler.num_envs=4 horizon=4 total_steps=96 learning_starts=48 buffer_size=400 "
    "batch_size=8 evaluation_interval=0",
}
"""options of a run with a few updates, by kind of algorithm"""


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
    if NETWORKS[name] in ("dqn", "pqn"):
        learner = config.learner
        more = getattr(learner, "num_atoms", 1), getattr(learner, "dueling", False)
        expected = make_model(NETWORKS[name], spec.observation, QHead(6, *more))
    else:
        expected = make_model(NETWORKS[name], spec.observation, 6)
    assert shapes(model) == shapes(expected)


# One of each kind in the slow tier, on either environment.
KINDS = (
    "a2c-catch a2c_baselines-CartPole-v1 ga3c-CartPole-v1 impala-catch ppo-CartPole-v1 "
    "appo-catch dqn-CartPole-v1 rainbow-catch"
)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of a store, which is left
@pytest.mark.processes
@pytest.mark.parametrize(
    "case",
    in_tiers(
        [f"{name}-{env}" for name in sorted(NETWORKS) for env in ("catch", "CartPole-v1")],
        "pqn-catch",
        KINDS,
    ),
)
def test_preset_learns_on_an_environment_without_images(case: str, tmp_path) -> None:
    name, _, env = case.partition("-")
    kind = next((kind for kind in ("ga3c", "ppo", "pqn", "dqn") if kind in name), "a2c")
    if "rainbow" in name:
        kind = "dqn"
    options = [f"algo={name}", f"env={env}", *TINY[kind].split(), f"run_dir={tmp_path / 'run'}"]
    if kind != "ga3c":
        options.append("num_workers=0")
    with undrawn():
        result = train(parse_arguments([*options, "decorrelation_steps=0", "device=cpu"]), quiet())
    gc.collect()
    assert result.updates >= 2
