"""Floats, mappings and masks are learned, and have to be learned."""

from pathlib import Path

import pytest
from saved_runs import quiet, trained

from accel_rl.tools.evaluate import EvaluateOptions, evaluate_run

COMMON = (
    *("algo=ppo", "lr=1e-3", "gae_lambda=0.95", "value_coefficient=0.5", "max_gradient_norm=0.5"),
    *("normalize_advantage=true", "minibatch_size=256", "log_interval=20000"),
)
SWING = (
    *(*COMMON, "env=control_envs:Swing", "num_envs=8", "horizon=128", "gamma=0.9", "epochs=10"),
    *("normalize_observation=true", "normalize_reward=true", "entropy_coefficient=0", "lr=2e-3"),
)
pytestmark = pytest.mark.usefixtures("one_torch_thread")

AIM = (*COMMON, "env=control_envs:Aim", "num_envs=16", "horizon=16", "entropy_coefficient=0")


def scores(folder: Path, options: tuple[str, ...], num_steps: int, played: int) -> list[float]:
    """Of the most probable actions, before and after ``num_steps`` steps."""
    given = {each.partition("=")[0]: each for each in options}  # the last of each
    found = []
    for steps, more in ((1, {"lr": "lr=1e-9"}), (num_steps, {})):
        arguments = {**given, **more}.values()
        run_dir = trained(folder / str(steps), *arguments, f"total_steps={steps}")
        evaluation = EvaluateOptions(num_steps=played, num_envs=8, num_workers=0, greedy=True)
        found.append(evaluate_run(run_dir, evaluation, quiet()).mean)
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("env", "num_steps", "bar"), [("Aim", 30_000, 0.8), ("MaskedGrid", 120_000, 0.65)]
)
def test_preset_learns_a_mapping_and_a_mask_as_it_is(env, num_steps, bar, tmp_path) -> None:
    preset = ("algo=ppo", f"env=control_envs:{env}", "num_envs=8", "log_interval=20000")
    before, after = scores(tmp_path, preset, num_steps, played=2_000)
    assert before < 0.4
    assert after > bar


@pytest.mark.nightly
def test_pendulum_is_held_up_with_normalization(tmp_path) -> None:
    """It hangs for -1,200 or less."""
    before, after = scores(tmp_path, SWING, 100_000, played=8_000)
    assert before < -900
    assert after > -350


@pytest.mark.slow
def test_float_and_integer_of_one_action_are_learned_together(tmp_path) -> None:
    """The integer alone is worth 0.5, the float alone 0.67."""
    before, after = scores(tmp_path, (*AIM, "lr=3e-3", "minibatch_size=128"), 12_000, played=1_000)
    assert before < 0.4
    assert after > 0.8
