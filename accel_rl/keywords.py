"""The keywords of `accel_rl.train`: all options of all presets, for editors and type checkers.

``python tests/helpers/options_index.py`` writes this file anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Literal, TypedDict


class TrainOptions(TypedDict, total=False):
    """Options of a run by name, as on the command line. ``accel_rl train --help=all`` says more."""

    config: str | PathLike[str]
    info_keys: Sequence[str]
    model: str
    memory: Literal["lstm", "gru"] | None
    previous_action_reward: bool
    schedule_steps: int | None
    max_minutes: float | None
    stop_at_score: float | None
    seed: int
    device: Literal["auto", "cpu", "cuda"]
    cuda_graphs: Literal["auto", "on", "off"]
    gpus: int | None
    learners: int | None
    overlap: bool
    run_dir: str | PathLike[str] | None
    init: str | PathLike[str] | None
    trust: bool
    tracker: Sequence[str]
    log_interval: int | None
    checkpoint_interval: int | None
    checkpoint_minutes: float | None
    evaluation_interval: int
    evaluation_steps: int
    evaluation_episodes: int | None
    sync: Literal["all_reduce", "store"]
    sync_period: int
    pull_steps: int | None
    num_envs: int
    horizon: int
    num_groups: int
    num_workers: int | None
    reset_policy: Literal["immediate", "wait"]
    decorrelation_steps: int
    affinity: Literal["auto", "rotate", "off"]
    on_worker_failure: Literal["raise", "restart"]
    step_timeout_seconds: float
    observation_size: Literal["104x80", "84x84"]
    frame_skip: int
    frame_stack: int
    max_noops: int
    press_fire: bool
    episodic_lives: bool
    clip_reward: bool
    full_action_set: bool
    sticky_actions: float
    max_episode_steps: int
    gamma: float
    bootstrap_on_truncation: bool
    lr_schedule: Literal["constant", "linear"]
    max_gradient_norm: float | None
    precision: Literal["float32", "tf32", "bfloat16"]
    log_norms: bool
    gae_lambda: float
    value_coefficient: float
    entropy_coefficient: float
    normalize_advantage: bool
    normalize_observation: bool
    normalize_reward: bool
    lr: float | None
    loss_reduction: Literal["mean", "sum", "sum_over_time"] | Literal["sum", "mean"]
    vtrace: bool
    rmsprop_decay: float
    rmsprop_eps: float
    rmsprop_initial: float
    num_predictors: int
    num_trainers: int
    min_training_batch: int
    training_queue_size: int
    tuner: bool
    epochs: int
    minibatch_size: int
    clip_range: float
    clip_schedule: Literal["constant", "linear"]
    target_kl: float | None
    clip_value: bool
    adam_eps: float | None
    batch_size: int
    training_intensity: float
    learning_starts: int
    buffer_size: int
    save_replay: bool
    n_step: int
    double: bool
    dueling: bool
    num_atoms: int
    quantiles: Literal["fixed", "implicit"] | None
    v_min: float
    v_max: float
    munchausen: bool
    noisy: bool
    value_rescaling: bool
    sequence_length: int
    burn_in: int
    target_update_interval: int | None
    optimizer: Literal["rmsprop", "adam"]
    prioritized: bool
    priority_alpha: float
    priority_beta: float
    priority_beta_steps: int
    epsilon_final: float
    epsilon_steps: int
    epsilon_per_env: bool
    epsilon_evaluation: float
    q_lambda: float
    exploration_fraction: float
    tau: float
    alpha: float | None
