"""Reading a run back from its directory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import rows, words
from saved_runs import Pay, prefer_action, trained

from accel_rl.cli.parse import parse_arguments
from accel_rl.config import TrainConfig
from accel_rl.runs.checkpoint import save_checkpoint
from accel_rl.runs.directory import write_config
from accel_rl.runs.saved import find_checkpoint, read_config
from accel_rl.tools.policy import load_policy
from accel_rl.vector import VectorEnv


def saved(config: TrainConfig, run_dir: Path) -> Path:
    write_config(config, run_dir / "config.yaml")
    return run_dir


def test_config_without_a_newer_option_takes_the_presets(tmp_path) -> None:
    saved(parse_arguments(["algo=a2c_baselines", "env=catch"]), tmp_path)
    path = tmp_path / "config.yaml"
    lines = [line for line in path.read_text().splitlines() if "rmsprop_initial" not in line]
    path.write_text("\n".join(lines))
    assert read_config(tmp_path).learner.rmsprop_initial == 1.0


def test_random_numbers_of_the_host_go_on_as_if_nothing_had_been_trained_or_read(tmp_path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    run_dir = trained(tmp_path / "run", "env=catch")
    load_policy(run_dir)
    assert torch.equal(torch.rand(3), expected)


CONFIGS = """
a: [1, 2 | cannot be read
\udcff | cannot be read
 | not the config of a training run
- 1 | not the config of a training run
name: somebody else's | not the config of a training run
algo: magic;env: pong | algo=magic is unknown to this version
algo: a2c;env: pong;colour: red | option colour is unknown to this version
algo: a2c;env: pong;sampler:;  speed: 3 | sampler.speed is unknown to this version
algo: a2c;env: pong;seed: many | is not valid: many
algo: a2c;env: pong;seed: -1 | is not valid: seed is -1
"""


@pytest.mark.parametrize(("text", "said"), rows(CONFIGS))
def test_broken_or_foreign_config_is_refused(text: str, said: str, tmp_path) -> None:
    lines = text.replace(";", "\n").encode("utf-8", "surrogateescape")
    (tmp_path / "config.yaml").write_bytes(lines)
    with pytest.raises(ValueError, match=words(said)) as caught:
        read_config(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_directory_without_a_run_or_checkpoint_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"no run directory .*absent; name one"):
        read_config(tmp_path / "absent")
    with pytest.raises(ValueError, match="x cannot be read: File name too long"):
        read_config(tmp_path / ("x" * 300))
    with pytest.raises(ValueError, match=r"holds no run: there is no config\.yaml"):
        read_config(tmp_path)
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        find_checkpoint(tmp_path)


def test_checkpoint_is_the_last_or_the_one_asked_for(tmp_path) -> None:
    first, last = (save_checkpoint(tmp_path, steps, {}) for steps in (0, 1200))
    assert find_checkpoint(tmp_path) == last
    assert find_checkpoint(tmp_path, 0) == first
    with pytest.raises(ValueError, match=r"no checkpoint of step 80; there are 0, 1200$"):
        find_checkpoint(tmp_path, 80)


# ---- the policy in one's own programs ------------------------------------------------------------


@pytest.fixture(scope="module")
def pay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose policy takes action 1 more often than the others."""
    run_dir = trained(tmp_path_factory.mktemp("pay") / "run", "env=saved_runs:Pay")
    prefer_action(run_dir, 1, logit=0.5)
    return run_dir


def observations(n: int) -> np.ndarray:
    return np.full((n, *Pay.spec.observation_shape), 100, np.uint8)


@pytest.mark.parametrize("kind", [str, Path])
def test_greedy_policy_takes_the_most_probable_action(kind: Any, pay) -> None:
    actions = load_policy(kind(pay), greedy=True)(observations(50))
    assert (actions.dtype, actions.tolist()) == (np.int64, [1] * 50)
    actions = load_policy(kind(pay))(observations(0))
    assert (actions.dtype, actions.shape) == (np.int64, (0,))


def test_policy_draws_its_actions_by_its_seed(pay) -> None:
    a, b, c = (load_policy(pay, seed=seed) for seed in (0, 0, 1))
    drawn = a(observations(300))
    assert np.array_equal(drawn, b(observations(300)))
    assert not np.array_equal(drawn, c(observations(300)))
    assert not np.array_equal(drawn, a(observations(300)))
    counts = np.bincount(drawn, minlength=3)  # probabilities 0.27, 0.45, 0.27
    assert counts.min() > 50 and counts.argmax() == 1


@pytest.mark.processes
def test_policy_acts_in_a_vector_environment(tmp_path) -> None:
    run_dir = trained(tmp_path / "run", "env=catch")
    prefer_action(run_dir, 0)
    policy = load_policy(run_dir)
    envs = VectorEnv("catch", 2)
    observation, _ = envs.reset(seed=0)
    observation, *_ = envs.step(policy(observation))
    envs.close()
    assert observation[:, -1].tolist() == [[0, 1, 0, 0, 0]] * 2  # the paddle went left


def test_policy_takes_arrays_that_torch_does_not(pay, recwarn) -> None:
    policy = load_policy(pay, greedy=True)
    fixed = observations(3)
    fixed.flags.writeable = False
    assert policy(fixed).tolist() == policy(fixed[::-1, :, ::-1]).tolist() == [1, 1, 1]
    assert not recwarn.list


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.uint8(3), "shape [] policy of pay [4, 6, 3] a batch"),
        (observations(2).astype(float), "dtype float64 uint8 [4, 6, 3]"),
    ],
    ids=["number", "dtype"],
)
def test_observations_of_another_kind_are_refused(given: Any, said: str, pay) -> None:
    with pytest.raises(ValueError, match=words(said)):
        load_policy(pay)(given)


def test_policy_of_what_cannot_be_had_is_refused_in_one_message(pay, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "config.yaml").write_text("algo: a2c\nenv: pong\n")
    for arguments, options, said in (
        ((tmp_path / "absent",), {}, "no run directory absent"),
        ((tmp_path,), {}, "has no checkpoint yet"),
        ((pay, 7), {}, "no checkpoint of step 7; there are 40"),
        ((pay,), {"device": "cuda"}, "device=cuda no GPU"),
        ((pay,), {"device": "gpu"}, "device is gpu; auto, cpu or cuda"),
    ):
        with pytest.raises(ValueError, match=words(said)):
            load_policy(*arguments, **options)  # type: ignore[arg-type]
