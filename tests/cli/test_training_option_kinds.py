"""Each option is of one kind, so that resuming and plotting cannot drift apart."""

from dataclasses import dataclass

from accel_rl.options import Option, list_options, option, when
from accel_rl.presets import PRESETS

LEARNING = {
    "": "algo env init memory model overlap previous_action_reward",
    "sampler": "decorrelation_steps horizon num_envs reset_policy",
    "atari": (
        "clip_reward episodic_lives frame_skip frame_stack full_action_set max_episode_steps "
        "max_noops observation_size press_fire sticky_actions"
    ),
    "parallel": "pull_steps sync sync_period",
    "learner": (
        "adam_eps alpha batch_size "
        "bootstrap_on_truncation buffer_size burn_in clip_range clip_schedule clip_value "
        "double dueling entropy_coefficient epochs epsilon_evaluation epsilon_final "
        "epsilon_per_env epsilon_steps exploration_fraction gae_lambda gamma "
        "learning_starts loss_reduction lr lr_schedule "
        "max_gradient_norm min_training_batch minibatch_size n_step "
        "normalize_advantage normalize_observation normalize_reward num_atoms optimizer precision "
        "munchausen noisy quantiles "
        "prioritized priority_alpha priority_beta priority_beta_steps q_lambda "
        "rmsprop_decay rmsprop_eps rmsprop_initial sequence_length "
        "target_kl target_update_interval tau training_intensity training_queue_size v_max v_min "
        "value_coefficient value_rescaling vtrace"
    ),
}
"""options that change what is learned, by group"""


def options() -> dict[str, Option]:
    return {each.key: each for preset in PRESETS.values() for each in list_options(preset())}


def test_options_that_change_what_is_learned_are_known() -> None:
    """All others say in their field what they are about."""
    learning = {
        f"{group}.{name}".removeprefix(".")
        for group, names in LEARNING.items()
        for name in names.split()
    }
    assert learning == {key for key, each in options().items() if each.kind == "learning"}
    kinds = {each.kind for each in options().values()}
    assert kinds == {"identity", "course", "engine", "watching", "learning"}


def test_options_of_a_users_own_config_are_common_and_of_what_is_learned() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Own:
        beta: float = 0.5
        """weight of something"""
        tricks: int = option(3, "watching", idle=when("beta", 0.0))
        """of the user"""

    beta, tricks = list_options(Own())
    assert (beta.kind, beta.idle, beta.is_common) == ("learning", None, True)
    assert (tricks.kind, tricks.is_common) == ("watching", False)
    assert tricks.idle is not None
    assert tricks.idle(Own(beta=0.0)) == "beta is 0"
    assert not tricks.idle(Own())
