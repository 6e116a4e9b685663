"""Runs whose network has an LSTM, from learning what needs memory to the film of a game."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from saved_runs import SMALL_DQN, quiet, trained

from accel_rl.cli.parse import parse_arguments
from accel_rl.envs import make_env_factory
from accel_rl.parallel import Ranks
from accel_rl.runs.saved import find_checkpoint, read_config
from accel_rl.samplers import ActionServer, ParallelSampler, SamplerConfig, SerialSampler
from accel_rl.tools.evaluate import EvaluateOptions, evaluate_run
from accel_rl.tools.policy import load_agent, load_policy
from accel_rl.training.devices import check_learners

pytestmark = pytest.mark.usefixtures("one_torch_thread")

CPU = torch.device("cpu")
ENV = "env=recall_env:Recall"
SIZES = ("num_envs=16", "horizon=16", "minibatch_size=64", "lr=2.5e-3")
PLAIN = ("normalize_observation=false", "normalize_reward=false", "entropy_coefficient=0.01")
PPO = ("algo=ppo", *SIZES, *PLAIN)
PQN = ("algo=pqn", *SIZES, "epochs=4", "exploration_fraction=0.5")
A2C = ("algo=a2c", "num_envs=4")


def mean_score(run_dir: Path) -> float:
    return evaluate_run(run_dir, EvaluateOptions(num_steps=800, num_workers=0), quiet()).mean


@pytest.mark.parametrize(
    ("options", "num_steps"),
    [
        pytest.param(PPO, 10_000, marks=pytest.mark.slow, id="ppo"),
        pytest.param(PQN, 8_000, marks=pytest.mark.nightly, id="pqn"),
        pytest.param(A2C, 40_000, marks=pytest.mark.nightly, id="a2c"),
    ],
)
def test_what_was_shown_at_the_beginning_is_remembered(
    options: tuple[str, ...], num_steps: int, tmp_path
) -> None:
    arguments = (ENV, *options, "memory=lstm", "log_interval=4000")
    before = trained(tmp_path / "before", *arguments, "total_steps=1")
    after = trained(tmp_path / "after", *arguments, f"total_steps={num_steps}")
    assert mean_score(before) < 0.5
    assert mean_score(after) > 0.9


@pytest.mark.nightly
def test_velocities_that_are_not_shown_are_learned_where_returns_are_large(tmp_path) -> None:
    """With the preset's value_coefficient; without an LSTM the score stays at about 50."""
    options = (
        "env=examples.hidden_velocity:make algo=ppo memory=lstm num_envs=8 horizon=128 epochs=8"
    )
    rates = "minibatch_size=256 lr=2.5e-3 gamma=0.98 num_workers=0 total_steps=24000"
    run_dir = trained(tmp_path / "run", *options.split(), *rates.split())
    score = evaluate_run(run_dir, EvaluateOptions(num_steps=4_000, num_workers=0), quiet()).mean
    assert score > 90


@pytest.fixture(scope="module")
def catch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("saved") / "run"
    return trained(run_dir, "env=catch", "memory=lstm", "lr=0.05")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its policy is told actions and rewards; it has learned from sequences of a replay."""
    run_dir = tmp_path_factory.mktemp("told") / "run"
    memory = ("memory=gru", "previous_action_reward=true", "sequence_length=8", "burn_in=2")
    small = ("learning_starts=160", "batch_size=8", "num_envs=4", "total_steps=240")
    return trained(run_dir, "algo=dqn", "env=catch", *memory, *small, "evaluation_interval=0")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return trained(tmp_path / "plain", *SMALL_DQN, "env=catch")


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("which", ["catch", "told", "plain"])
def test_policy_in_a_sampler_gives_the_rollouts_of_the_agent(which: str, request: Any) -> None:
    catch = request.getfixturevalue(which)
    config = SamplerConfig(num_envs=4, horizon=20, num_groups=2)
    factory = make_env_factory("catch")
    actions = []
    for kind in (SerialSampler, ParallelSampler):
        policy = load_policy(catch)
        with kind(factory, config=config, seed=3) as sampler:
            actions.append([sampler.collect(policy).action.copy() for _ in range(3)])
    with SerialSampler(factory, config=config, seed=3) as sampler:
        run_config = read_config(catch)
        agent, _ = load_agent(find_checkpoint(catch), run_config, sampler.env_spec, CPU)
        with ActionServer(agent, sampler, CPU) as server:
            actions.append([sampler.collect(server).action.copy() for _ in range(3)])
    assert np.array_equal(actions[0], actions[2]) and np.array_equal(actions[1], actions[2])


@pytest.mark.slow
def test_policy_remembers_by_place_until_told_that_an_episode_begins(catch: Path) -> None:
    """The same observation again is acted on otherwise; after `is_first`, as at first."""
    policy = load_policy(catch, greedy=True)
    observation = np.random.default_rng(0).integers(2, size=(3, *policy.env_spec.observation_shape))
    given = observation.astype(policy.env_spec.observation_dtype)
    never, always = np.zeros(3, np.bool_), np.ones(3, np.bool_)

    def states(is_first: Any, num: int = 3) -> torch.Tensor:
        policy(given[:num], is_first[:num])
        assert policy._states is not None
        return policy._states.get_state()

    first, second = states(always), states(never)
    assert not torch.allclose(first, second)
    torch.testing.assert_close(states(np.array([True, False, True]))[[0, 2]], first[[0, 2]])
    kept = states(never)
    fewer = states(never, 2)
    assert torch.equal(fewer[2], kept[2]) and not torch.equal(fewer[:2], kept[:2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_first", "message"),
    [
        (None, r"give is_first, \[2\] bool"),
        (np.array([True, False]), r"is_first\[1\] is False in the first call"),
        (np.zeros(3, np.bool_), r"give is_first, \[2\] bool"),
        (np.zeros(2), r"give is_first, \[2\] bool"),
    ],
    ids=["none", "never", "shape", "dtype"],
)
def test_policy_that_is_not_told_where_episodes_begin_says_so(
    is_first: Any, message: str, catch: Path
) -> None:
    policy, other = load_policy(catch, seed=3), load_policy(catch, seed=3)
    spec = policy.env_spec
    observation = np.zeros((2, *spec.observation_shape), spec.observation_dtype)
    with SerialSampler(make_env_factory("catch"), num_envs=4, horizon=2) as sampler:
        sampler.collect(policy)  # it says so by itself, but of its own environments
    with pytest.raises(ValueError, match=message):
        policy(observation, is_first)
    always = np.ones(2, np.bool_)
    assert np.array_equal(policy(observation, always), other(observation, always))  # as seeded


@pytest.mark.slow
def test_policy_that_needs_rewards_says_so_and_acts_by_them(told: Path) -> None:
    policy = load_policy(told, greedy=True)
    spec = policy.env_spec
    seen = np.zeros((2, *spec.observation_shape), spec.observation_dtype)
    always, never = np.ones(2, np.bool_), np.zeros(2, np.bool_)
    policy(seen, always)  # nothing came before
    message = r"with previous_action_reward=true and must be told rewards: give reward, \[2\] num"
    for wrong in (None, np.zeros(3), np.array([0, np.nan])):
        with pytest.raises(ValueError, match=message):
            policy(seen, never, wrong)
    states = []
    for reward in (0.0, 50.0):
        policy(seen, always)
        policy(seen, never, np.array([reward, 0.0]))
        assert policy._states is not None
        states.append(policy._states.get_state()[:, :64])
    assert not torch.allclose(states[0][0], states[1][0])
    torch.testing.assert_close(states[0][1], states[1][1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("algo=sac", "memory=lstm .* algo=sac; leave it out, or use a2c"),
        ("algo=ppo horizon=16 minibatch_size=8", "horizon=16, .* use minibatch_size=16, or"),
        ("algo=ppo num_envs=10 horizon=3 minibatch_size=10", "=3, .* use minibatch_size=6, or"),
        ("algo=ppo num_envs=7 horizon=4 num_groups=1 minibatch_size=8", "use minibatch_size=4, or"),
        (
            "algo=ppo num_envs=8 horizon=16 minibatch_size=16 learners=2",
            "2 learners, .* use minibatch_size=32, or",
        ),
    ],
)
def test_what_cannot_be_learned_is_refused(arguments: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_arguments([*arguments.split(), "memory=lstm"])


def test_a_number_is_no_boolean() -> None:
    """OmegaConf would take 256 for true."""
    assert parse_arguments(["overlap=1"]).overlap and not parse_arguments(["overlap=0"]).overlap
    for number in ("256", "-1", " 5", "1_000"):
        with pytest.raises(
            ValueError, match=f"overlap={number} is not valid; it must be: true.false"
        ):
            parse_arguments([f"overlap={number}"])


def test_environments_that_learners_do_not_divide_are_refused_with_what_fits() -> None:
    config = parse_arguments(
        ["algo=ppo", "memory=lstm", "num_envs=16", "horizon=4", "minibatch_size=32"]
    )
    message = "num_envs=16 does not divide among 3 learners .*; use num_envs=12,"
    with pytest.raises(ValueError, match=message):
        check_learners(config, Ranks(0, 3, 0, 3))
