"""Presets against the numbers of their papers, and configs through YAML and back."""

import dataclasses
import math
from typing import Any

import pytest
from gymnasium.spaces import Box, Dict, MultiBinary
from tiers import in_tiers

from accel_rl.cli.parse import parse_arguments
from accel_rl.config import TrainConfig
from accel_rl.envs import EnvSpec
from accel_rl.options import format_value, list_options
from accel_rl.parallel import Adam
from accel_rl.presets import PRESETS, describe_settings, sees_images
from accel_rl.runs.directory import write_config
from accel_rl.runs.saved import read_config
from accel_rl.samplers import SamplerConfig
from accel_rl.spaces import discrete, from_gymnasium

# Stooke and Abbeel 2018 (arXiv:1803.02811), sections 4 and 5, appendix, and the published code;
# OpenAI baselines, a2c: defaults of learn() and of its network; Clemente et al. 2017
# (arXiv:1705.04862) and the code published with it; OpenAI baselines' ppo2 for Atari and MuJoCo,
# whose value_coefficient is 0.5 * 0.5 here; Kapturowski et al. 2019, table 2; Gallici et al. 2024
# (arXiv:2407.04811), and purejaxql's pqn_atari.yaml; Dabney et al. 2017 and 2018 (arXiv:1710.10044,
# arXiv:1806.06923); the code of Clark et al. 2024 (arXiv:2411.03820).
PRESET_LINES = """
a2c: num_envs=16 horizon=5 lr=none gamma=0.99 gae_lambda=1.0 value_coefficient=0.25 model=auto
  entropy_coefficient=0.01 max_gradient_norm=0.5 rmsprop_decay=0.9 rmsprop_eps=1e-06
  rmsprop_initial=0.0 observation_size=104x80 sticky_actions=0.0 max_noops=30
  max_episode_steps=27_000
a2c_baselines: num_envs=16 horizon=5 gamma=0.99 gae_lambda=1.0 value_coefficient=0.5 model=nature
  entropy_coefficient=0.01 max_gradient_norm=0.5 rmsprop_decay=0.99 rmsprop_eps=1e-05
  rmsprop_initial=1.0 observation_size=84x84 lr=0.0007 lr_schedule=linear
paac: num_envs=32 horizon=5 num_groups=1 lr=0.0224 loss_reduction=sum_over_time rmsprop_decay=0.99
  rmsprop_eps=0.1 rmsprop_initial=1.0 max_gradient_norm=3.0 entropy_coefficient=0.02
  value_coefficient=0.25 lr_schedule=linear schedule_steps=80_000_000 episodic_lives=false
  press_fire=false observation_size=84x84
ga3c: num_envs=32 num_groups=32 horizon=5 num_predictors=2 num_trainers=2
  min_training_batch=20 training_queue_size=100 lr=0.0003
  lr_schedule=constant loss_reduction=sum rmsprop_decay=0.99 rmsprop_eps=0.1
  rmsprop_initial=1.0 value_coefficient=0.5 entropy_coefficient=0.01 max_gradient_norm=none
  episodic_lives=false press_fire=false observation_size=84x84
impala: num_envs=32 horizon=20 overlap=true vtrace=true gae_lambda=1.0
  gamma=0.99 lr=0.0006 lr_schedule=linear total_steps=50_000_000 loss_reduction=sum
  rmsprop_decay=0.99 rmsprop_eps=0.01 rmsprop_initial=1.0 max_gradient_norm=40.0
  entropy_coefficient=0.01 value_coefficient=0.25 episodic_lives=true observation_size=84x84
impala num_envs=256: horizon=20 loss_reduction=sum lr=0.0006
ppo: num_envs=8 horizon=256 epochs=4 minibatch_size=512 lr=0.001 lr_schedule=linear clip_range=0.2
  gae_lambda=0.95 value_coefficient=1.0 entropy_coefficient=0.01 max_gradient_norm=none
  adam_eps=1e-05
ppo_baselines: num_envs=8 horizon=128 minibatch_size=256 lr=0.00025 clip_range=0.1
  max_gradient_norm=0.5 value_coefficient=0.25 normalize_advantage=true clip_value=true
  lr_schedule=linear epochs=4 gae_lambda=0.95 entropy_coefficient=0.01 adam_eps=1e-05
ppo_mujoco: num_envs=1 horizon=2048 minibatch_size=64 epochs=10 lr=0.0003 lr_schedule=linear
  clip_range=0.2 clip_schedule=constant clip_value=true gamma=0.99 gae_lambda=0.95
  entropy_coefficient=0.0 value_coefficient=0.25 max_gradient_norm=0.5 normalize_advantage=true
  normalize_observation=true normalize_reward=true adam_eps=1e-05
  decorrelation_steps=0 total_steps=1_000_000
ppo_mujoco num_envs=8 num_workers=none: num_envs=8 horizon=256
dqn: num_envs=32 horizon=4 batch_size=32 lr=0.00025 rmsprop_decay=0.95 rmsprop_eps=1e-06
  training_intensity=8.0 learning_starts=50_000 target_update_interval=10_000 epsilon_final=0.1
  epsilon_steps=1_000_000 epsilon_evaluation=0.05 buffer_size=1_000_000
  evaluation_interval=1_000_000 evaluation_steps=125_000
dqn batch_size=512: lr=0.00075 num_envs=32
dqn batch_size=1024: lr=0.0015 num_envs=32
double_dqn: double=true lr=0.00025 epsilon_evaluation=0.05 evaluation_interval=1_000_000
cat_dqn: num_atoms=51 v_min=-10.0 v_max=10.0 lr=0.00025 optimizer=adam epsilon_steps=1_000_000
cat_dqn batch_size=2048: lr=0.00042 num_envs=64 adam_eps=none epsilon_final=0.01
  epsilon_evaluation=0.001
a3c: sync=store lr=none num_envs=16 max_gradient_norm=0.5
appo: sync=store num_envs=8 horizon=256 lr=0.00025 lr_schedule=constant max_gradient_norm=0.5
  sync_period=4 pull_steps=64 minibatch_size=512 epochs=4
r2d2: num_envs=256 sequence_length=80 burn_in=40 batch_size=5120 buffer_size=4_000_000 n_step=5
  gamma=0.997 lr=0.0001 adam_eps=0.001 target_update_interval=none priority_alpha=0.9
  priority_beta=0.6 epsilon_final=0.4 memory=lstm
  previous_action_reward=true double=true dueling=true value_rescaling=true clip_reward=false
  episodic_lives=false
pqn: num_envs=128 horizon=32 epochs=2 minibatch_size=128 lr=0.00025 lr_schedule=constant
  gamma=0.99 q_lambda=0.65 max_gradient_norm=10.0
  epsilon_final=0.001 exploration_fraction=0.1 epsilon_evaluation=0.0
  total_steps=50_000_000 observation_size=84x84 episodic_lives=true clip_reward=true
sac: num_envs=8 horizon=1 batch_size=256 training_intensity=256.0 learning_starts=1000 lr=0.0003
  tau=0.005 buffer_size=1_000_000
ppo env=CartPole-v1: num_envs=8 horizon=256 epochs=10 minibatch_size=64 lr=0.0003
  lr_schedule=constant gae_lambda=0.95 entropy_coefficient=0.0 max_gradient_norm=0.5
  normalize_advantage=true value_coefficient=0.5 num_groups=1 decorrelation_steps=0 num_workers=0
ppo env=CartPole-v1 num_envs=32 lr=0.1: horizon=64 minibatch_size=64 lr=0.1
a2c env=CartPole-v1: num_envs=4 horizon=16 num_groups=1 num_workers=0 decorrelation_steps=0 lr=0.003
  lr_schedule=linear gae_lambda=0.9 entropy_coefficient=0.0 max_gradient_norm=0.5
  normalize_advantage=true value_coefficient=0.5 rmsprop_decay=0.99 rmsprop_eps=1e-05
dqn env=CartPole-v1: num_envs=4 horizon=4 num_workers=0 num_groups=1 decorrelation_steps=0
  optimizer=adam lr=0.001 lr_schedule=linear batch_size=64 training_intensity=32.0
  learning_starts=1000 buffer_size=50_000 target_update_interval=256 epsilon_final=0.04
  epsilon_steps=8000 max_gradient_norm=10.0 evaluation_interval=0
double_dqn env=CartPole-v1 batch_size=128: double=true batch_size=128 lr=0.001 num_envs=4
pqn env=CartPole-v1: num_workers=0 num_groups=1 num_envs=16 horizon=32 decorrelation_steps=0
  lr=0.001 lr_schedule=linear epochs=4 minibatch_size=64 q_lambda=0.9
ppo env=CartPole-v1 memory=lstm: horizon=256 minibatch_size=256
ppo env=CartPole-v1 num_workers=2 epochs=3: num_workers=2 epochs=3 num_groups=1
ppo env=CartPole-v1 num_envs=6 horizon=32: num_envs=6 horizon=32 epochs=10
ga3c env=CartPole-v1: num_envs=16 num_groups=4 horizon=8 lr=0.001 lr_schedule=linear
  loss_reduction=mean entropy_coefficient=0.0 rmsprop_eps=1e-06 training_queue_size=8 tuner=false
r2d2 env=CartPole-v1: memory=lstm num_envs=4 horizon=16 num_workers=0 batch_size=256 burn_in=4
  sequence_length=16 training_intensity=16.0 target_update_interval=1600 lr=0.001 n_step=3
  double=true dueling=true value_rescaling=true prioritized=true epsilon_final=0.04
async_dqn: sync=store batch_size=512 lr=0.00075
qr_dqn: num_atoms=200 quantiles=fixed lr=5e-05 optimizer=adam adam_eps=none epsilon_final=0.01
  epsilon_evaluation=0.001 batch_size=32 double=false n_step=1
iqn: num_atoms=64 quantiles=implicit lr=5e-05 optimizer=adam adam_eps=none epsilon_final=0.01
btr: num_envs=64 horizon=1 overlap=true batch_size=256 training_intensity=4.0 model=btr
  learning_starts=200_000 buffer_size=1_048_576 n_step=3 gamma=0.997 lr=0.0001
  adam_eps=1.953125e-05 max_gradient_norm=10.0 target_update_interval=32_000 num_atoms=8
  quantiles=implicit munchausen=true noisy=true dueling=true double=false prioritized=true
  priority_alpha=0.2 priority_beta=0.4 priority_beta_steps=50_000_000 epsilon_final=0.01
  epsilon_evaluation=0.01 sticky_actions=0.25 episodic_lives=false clip_reward=true
  observation_size=84x84 total_steps=50_000_000
rainbow: batch_size=512 lr=6.25e-05 adam_eps=9.765625e-06 n_step=3 double=true dueling=true
  prioritized=true num_atoms=51 priority_alpha=0.5 priority_beta=0.4
  priority_beta_steps=50_000_000 optimizer=adam v_min=-10.0 v_max=10.0 training_intensity=8.0
  epsilon_final=0.01 epsilon_evaluation=0.001 learning_starts=20_000 epsilon_steps=62_500
  target_update_interval=8000 max_gradient_norm=10.0
"""


@pytest.mark.parametrize(
    ("options", "steps"),
    [([], 12_800_000), (["batch_size=1600"], 4_000_000), (["training_intensity=2"], 6_400_000)],
)
def test_target_network_of_r2d2_is_copied_every_2500_updates(options, steps) -> None:
    learner: Any = parse_arguments(["algo=r2d2", "env=pong", *options]).learner
    assert learner.target_steps == steps


LINES = PRESET_LINES.replace("\n  ", " ").strip().splitlines()


@pytest.mark.parametrize(
    "line", [*LINES[:12], *(pytest.param(each, marks=pytest.mark.slow) for each in LINES[12:])]
)
def test_presets_have_the_numbers_of_their_papers(line: str) -> None:
    preset, _, expected = line.partition(": ")
    config = parse_arguments([f"algo={preset.split()[0]}", *preset.split()[1:]])
    options = {option.name: option.default for option in list_options(config)}
    for name, text in (each.split("=") for each in expected.split()):
        found = options[name]
        if isinstance(found, int | float) and not isinstance(found, bool):
            assert found == pytest.approx(float(text)), name
        else:
            assert format_value(found) == text, name


def test_adam_of_categorical_dqn_has_the_epsilon_of_its_batch() -> None:
    for batch_size in (32, 2048):
        rule = PRESETS["cat_dqn"](batch_size).learner.rule
        assert isinstance(rule, Adam) and rule.eps == pytest.approx(0.01 / batch_size)


@pytest.mark.parametrize(
    "name",
    in_tiers(PRESETS, "a2c cat_dqn ga3c sac", " ".join(PRESETS)),
)
def test_written_config_read_back_is_the_same(name: str, tmp_path) -> None:
    config = dataclasses.replace(PRESETS[name](), env="breakout", info_keys=("a",), run_dir="x")
    write_config(config, tmp_path / "config.yaml")
    assert read_config(tmp_path) == config


@pytest.mark.parametrize(
    ("total_steps", "planned"), [(80, 80), (81, 160), (79, 80), (1_000, 1_040)]
)
def test_planned_steps_are_total_steps_rounded_up_to_rollouts(total_steps, planned) -> None:
    config = TrainConfig(total_steps=total_steps)  # 16 environments x 5 steps
    assert config.planned_steps == planned
    assert config.planned_steps == math.ceil(total_steps / 80) * 80


def test_progress_follows_schedule_steps_and_never_exceeds_one() -> None:
    config = TrainConfig(total_steps=1_000, schedule_steps=4_000)
    assert [config.progress(steps) for steps in (0, 1_000, 4_000)] == [0.0, 0.25, 1.0]
    assert TrainConfig(total_steps=1_000).progress(1_040) == 1.0


@pytest.mark.parametrize(
    ("options", "rows", "checkpoints"),
    [
        ({}, 10_000, 500_000),
        ({"num_envs": 132}, 10_000, 500_000),
        ({"num_envs": 960}, 72_000, 3_600_000),
        ({"num_envs": 960, "log_interval": 500, "checkpoint_interval": 700}, 500, 700),
    ],
)
def test_intervals_grow_with_the_environments_unless_they_are_given(
    options: dict[str, int], rows: int, checkpoints: int
) -> None:
    """75 * 960 and 3,750 * 960."""
    num_envs = options.pop("num_envs", 16)
    config = TrainConfig(sampler=SamplerConfig(num_envs=num_envs), **options)
    assert (config.row_steps, config.checkpoint_steps) == (rows, checkpoints)


@pytest.mark.parametrize("env", ["pong", "catch", "no_such:make"])
def test_images_have_the_settings_of_the_paper(env: str) -> None:
    config = parse_arguments(["algo=ppo", f"env={env}"])
    assert config == dataclasses.replace(PRESETS["ppo"](), env=env)


@pytest.mark.parametrize(
    ("arguments", "model"),
    [
        ("algo=impala env=pong", "impala"),
        ("algo=impala env=CartPole-v1", "auto"),
        ("algo=ga3c env=catch", "auto"),
        ("algo=impala env=CartPole-v1 model=mlp", "mlp"),
        ("algo=impala env=CartPole-v1 model=nature", "nature"),  # refused when it is made
    ],
)
def test_network_of_a_preset_is_for_images_that_are_large_enough(
    arguments: str, model: str
) -> None:
    assert parse_arguments(arguments.split()).model == model


@pytest.mark.parametrize(
    ("space", "is_image"),
    [
        (Box(0, 1, (10, 5)), True),
        (Box(0, 1, (5,)), False),
        (Dict(a=Box(0, 1, (5,)), action_mask=MultiBinary(3)), False),
        (Dict(board=Box(0, 1, (2, 5, 5)), speed=Box(0, 1)), False),
        (Dict(camera=Box(0, 1, (84, 84, 3)), speed=Box(0, 1)), True),
    ],
    ids=str,
)
def test_images_are_arrays_of_rows_or_parts_that_are_large(space: Any, is_image: bool) -> None:
    spec = EnvSpec(name="x", observation=from_gymnasium(space), action=discrete(3))
    assert sees_images(spec) == is_image


def test_preset_of_ones_own_keeps_the_network_of_the_preset_it_is_made_from(
    tmp_path, monkeypatch
) -> None:
    (tmp_path / "derived.py").write_text(
        "from dataclasses import replace\nfrom accel_rl.presets import impala\n"
        "def make(is_image=True):\n"
        "    return replace(impala(), total_steps=5 if is_image else 7)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    envs = ("pong", "CartPole-v1")
    found = [parse_arguments(["algo=derived:make", f"env={env}"]) for env in envs]
    assert [(each.model, each.total_steps) for each in found] == [("impala", 5), ("auto", 7)]
    spec = found[1].probe_spec()
    assert "observations that are no images" in (describe_settings(found[1], spec) or "")
    assert describe_settings(PRESETS["sac"](), spec) is None
