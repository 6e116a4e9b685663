"""What an unknown option, or several values in place of one, are answered with."""

from pathlib import Path

import pytest

from accel_rl.cli.parse import override, parse_arguments
from accel_rl.tools.play import PlayOptions


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        ("learning_rate=1", "lr"),
        ("learner.learning_rate=1", "learner.lr"),
        ("discount=1", "gamma"),
        ("ent_coef=1", "entropy_coefficient"),
        ("vf_coef=1", "value_coefficient"),
        ("total_timesteps=1", "total_steps"),
        ("n_envs=1", "num_envs"),
        ("n_steps=1", "horizon"),
        ("num_steps=1", "horizon"),
        ("algo=dqn n_steps=1", "n_step"),
        ("algo=dqn buffer_size=1", "replay_size"),
    ],
)
def test_another_library_s_name_gives_ours(arguments: str, suggestion: str) -> None:
    assert answer(arguments) == f"did you mean {suggestion}?"


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        ("entropy=1", "entropy_coefficient"),
        ("gae=1", "gae_lambda"),
        ("lambda=1", "gae_lambda"),
        ("algo=ppo clip=1", "clip_reward or clip_range or clip_schedule"),
        ("algo=ppo batch=1", "minibatch_size"),
        ("algo=dqn batch=1", "batch_size"),
        ("algo=dqn replay=1", "replay_size or replay_device or save_replay"),
        ("algo=dqn epsilon=1", "epsilon_initial or epsilon_final or epsilon_steps"),
        ("sampler.workers=1", "sampler.workers_per_core or sampler.num_workers"),
    ],
)
def test_word_gives_the_options_that_have_it(arguments: str, suggestion: str) -> None:
    assert answer(arguments) == f"did you mean {suggestion}?"


@pytest.mark.parametrize("arguments", ["epsilon=1", "buffer_size=1", "algo=dqn ent_coef=1", "e=1"])
def test_name_like_none_of_the_algorithm_s_gives_where_all_are(arguments: str) -> None:
    assert answer(arguments) == "--help=all lists all"


SWEEP = "; several values are for `sweep`, on its command line"


@pytest.mark.parametrize("argument", ["seed=0..2", "lr=1e-3,3e-4", "num_workers=[1,2]"])
def test_several_values_of_one_are_told_to_be_the_sweep_s(argument: str) -> None:
    assert answer(argument).endswith(SWEEP)


def test_list_in_a_file_is_told_to_be_the_sweep_s(tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text("lr: [1e-3, 3e-4]")
    assert answer(f"config={path}").endswith(SWEEP)


@pytest.mark.parametrize("argument", ["seed=two", "cpus=0..3", "cpus=a,b", "lr=[1"])
def test_other_wrong_values_are_not(argument: str) -> None:
    assert "it must be" in answer(argument) and "sweep" not in answer(argument)


@pytest.mark.parametrize(
    ("name", "suggestion"), [("PPO", "ppo or appo"), ("Rainbow", "rainbow or eps_rainbow")]
)
def test_preset_in_other_letters_gives_ours(name: str, suggestion: str) -> None:
    assert answer(f"algo={name}").startswith(f"did you mean {suggestion}?")


def test_resume_must_name_a_run() -> None:
    assert answer("resume=") == "name one, or leave it out"


def test_only_training_has_a_sweep() -> None:
    with pytest.raises(ValueError, match=r"it must be: integer$"):
        override(PlayOptions(), {"seed": "0..2"})


def answer(arguments: str) -> str:
    with pytest.raises(ValueError) as info:
        parse_arguments(arguments.split())
    return str(info.value).partition("; ")[2]
