"""Each option is of one kind, so that resuming and plotting cannot drift apart."""

from collections import Counter

from accel_rl.cli.ineffective import PARALLEL_ONLY
from accel_rl.options import list_options, options_of
from accel_rl.presets import PRESETS

KINDS = ("identity", "course", "engine", "watching")
LEARNING = {
    "": "algo env lstm model overlap",
    "sampler": "decorrelation_steps horizon num_envs reset_policy",
    "atari": (
        "clip_reward episodic_lives frame_skip frame_stack full_action_set max_episode_steps "
        "max_noops observation_size press_fire sticky_actions"
    ),
    "parallel": "num_chunks pull_steps sync sync_period",
    "learner": (
        "adam_eps advantage_eps batch_size clip_range clip_value compatibility double dueling "
        "entropy_coefficient epochs epsilon_evaluation epsilon_final epsilon_initial "
        "epsilon_per_env epsilon_steps gae_lambda gamma gradient_norm_eps huber_delta log_eps "
        "loss_scale lr lr_base lr_schedule max_gradient_norm max_importance_ratio "
        "max_prediction_batch min_steps min_training_batch minibatch_size n_step "
        "normalize_advantage num_atoms optimizer precision prioritized priority_alpha "
        "priority_beta priority_beta_steps priority_default reduction replay_size "
        "rmsprop_decay rmsprop_eps rmsprop_initial "
        "target_update_steps time_limit_terminal training_intensity "
        "training_queue_size v_max v_min value_coefficient"
    ),
}
"""options that change what is learned, by group"""


def test_each_option_is_of_one_kind() -> None:
    """A new option goes into `accel_rl.options`, or here if it changes learning."""
    learning = (f"{group}.{name}" for group, names in LEARNING.items() for name in names.split())
    listed = Counter(key.removeprefix(".") for key in learning)
    for kind in KINDS:
        listed.update(options_of(kind))
    options = {option.key for preset in PRESETS.values() for option in list_options(preset())}
    assert listed == Counter(options)


def test_options_of_parallel_samplers_do_not_change_learning() -> None:
    assert set(PARALLEL_ONLY) <= options_of("engine")
