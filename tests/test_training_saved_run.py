"""Reading a run back from its directory."""

from pathlib import Path

import pytest

from accel_rl.config import TrainConfig
from accel_rl.training.checkpoint import save_checkpoint
from accel_rl.training.command_line import parse_arguments
from accel_rl.training.run_directory import write_config
from accel_rl.training.saved_run import latest_checkpoint, read_config


def saved(config: TrainConfig, run_dir: Path) -> Path:
    write_config(config, run_dir / "config.yaml")
    return run_dir


def test_config_that_was_written_is_read_back_equal(tmp_path) -> None:
    config = parse_arguments(
        ["algo=a2c_baselines", "env=pong", "cpus=0,1", "total_steps=3e6", "num_envs=8", "seed=5"]
    )
    assert read_config(saved(config, tmp_path)) == config


def test_config_without_a_newer_option_takes_the_presets(tmp_path) -> None:
    saved(parse_arguments(["algo=a2c_baselines", "env=catch"]), tmp_path)
    path = tmp_path / "config.yaml"
    lines = [line for line in path.read_text().splitlines() if "rmsprop_initial" not in line]
    path.write_text("\n".join(lines))
    assert read_config(tmp_path).learner.rmsprop_initial == 1.0


def test_missing_run_directory_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"no run directory .*absent; name one"):
        read_config(tmp_path / "absent")


def test_run_directory_that_cannot_be_looked_at_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="x cannot be read: File name too long"):
        read_config(tmp_path / ("x" * 300))


def test_run_with_fewer_steps_than_environments_of_an_evaluation_is_read(tmp_path) -> None:
    """New ones are refused; those that there are go on."""
    lines = "algo: dqn\nenv: catch\nevaluation_interval: 100\nevaluation_steps: 10\n"
    (tmp_path / "config.yaml").write_text(lines)
    assert read_config(tmp_path).evaluation_steps == 10


def test_directory_without_config_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"holds no run: there is no config\.yaml"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: [1, 2", "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"", "not the config of a training run"),
        (b"- 1\n- 2\n", "not the config of a training run"),
        (b"name: somebody else's\n", "not the config of a training run"),
        (b"algo: magic\nenv: pong\n", "algo=magic is unknown to this version"),
        (b"algo: a2c\nenv: pong\ncolour: red\n", "option colour is unknown to this version"),
        (
            b"algo: a2c\nenv: pong\nsampler:\n  speed: 3\n",
            r"option sampler\.speed is unknown to this version",
        ),
        (b"algo: a2c\nenv: pong\nseed: many\n", "is not valid: .*many"),
        (b"algo: a2c\nenv: pong\nseed: -1\n", "is not valid: seed is -1"),
    ],
    ids=[
        "broken",
        "binary",
        "empty",
        "list",
        "foreign",
        "algo",
        "option",
        "option of a group",
        "type",
        "range",
    ],
)
def test_broken_or_foreign_config_is_refused(text: bytes, message: str, tmp_path) -> None:
    (tmp_path / "config.yaml").write_bytes(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_config(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_checkpoint_is_the_last_or_the_one_asked_for(tmp_path) -> None:
    first, last = (save_checkpoint(tmp_path, steps, {}, num_kept=3) for steps in (80, 1200))
    assert latest_checkpoint(tmp_path) == last
    assert latest_checkpoint(tmp_path, 80) == first


def test_run_without_checkpoints_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        latest_checkpoint(tmp_path)


def test_checkpoint_that_is_not_there_is_refused_with_those_that_are(tmp_path) -> None:
    for steps in (0, 1200):
        save_checkpoint(tmp_path, steps, {}, num_kept=3)
    with pytest.raises(ValueError, match=r"no checkpoint of step 80; there are 0, 1200$"):
        latest_checkpoint(tmp_path, 80)
