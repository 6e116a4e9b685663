"""``learners=auto``: when a run has several learners, and what it says about that."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from accel_rl.algos import A2CConfig, RunOptions
from accel_rl.cli import auto
from accel_rl.cli.auto import LEAST_STEPS, choose_learners
from accel_rl.cli.parse import given_options, parse_arguments
from accel_rl.cli.run import run
from accel_rl.config import TrainConfig
from accel_rl.system.stopping import LAUNCHER_VARIABLE
from accel_rl.system.topology import Core, Machine

pytestmark = pytest.mark.slow

TWO_CORES = Machine((Core((0,)), Core((1,))))
RULE = auto.is_faster
LONG = ("env=catch", "total_steps=1e6")


@pytest.fixture(autouse=True)
def all_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the rule, whatever was measured."""
    monkeypatch.setattr(auto, "is_faster", lambda config, num: True)


def choose(
    *arguments: str, machine: Machine = TWO_CORES, variables: dict[str, str] | None = None
) -> tuple[TrainConfig, str]:
    given = [each.partition("=")[0] for each in arguments]
    whole = [*arguments, *(each for each in LONG if each.partition("=")[0] not in given)]
    config = parse_arguments(whole)
    return choose_learners(config, given_options(whole), machine, variables or {})


@pytest.mark.parametrize(
    "options", [[], ["learners=auto"], ["algo=ppo"], ["algo=dqn", "replay_size=1e5"], ["gpus=0"]]
)
def test_long_run_on_two_cores_has_two_learners_that_simulate_themselves(
    options: list[str],
) -> None:
    config, sentence = choose(*options)
    before = parse_arguments([*LONG, *options])
    assert before.learners == "auto" and before.num_learners == 1
    assert config == dataclasses.replace(before, learners=2, serial=True)
    assert sentence.startswith("learners=2 serial=true, because ")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["algo=a3c"], "sync=store"),
        (["overlap=true"], "overlap=true"),
        (["lstm=true"], "lstm=true"),
        (["affinity=off"], "affinity=off"),
        (["model=mine:make"], "model=mine:make"),
        (["algo=ga3c"], "algo=ga3c is not divided among learners"),
        ([f"total_steps={LEAST_STEPS - 1}"], "total_steps=99,999 is below 100,000"),
        (["max_minutes=0.5"], "max_minutes=0.5 is below 1"),
        (["evaluation_interval=4e5"], "evaluations take more than a fourth of the steps"),
        (["serial=true"], "serial is given"),
        (["serial=false"], "serial is given"),
        (["cpus=0,1"], "cpus is given"),
        (["num_workers=1"], "num_workers is given"),
        (["num_groups=4"], "num_groups is given"),
        (["sampler.on_worker_failure=restart"], "on_worker_failure is given"),
        (["num_envs=6"], "num_envs=6 does not divide among 2 learners of 2 groups each"),
        (["algo=dqn", "batch_size=33"], "batch_size=33 does not divide among 2 learners"),
        (["algo=ppo", "minibatch_size=1"], "minibatch_size=1 does not divide among 2 learners"),
        (["algo=dqn", "replay_size=1e12"], r"2 would take [\d,.]+ GB, and [\d.]+ GB are free"),
    ],
)
def test_run_that_several_learners_do_not_suit_has_one(options: list[str], reason: str) -> None:
    config, sentence = choose(*options)
    assert config.learners == 1
    assert config.serial == ("serial=true" in options)
    assert re.match(f"learners=1, because .*{reason}", sentence), sentence


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({LAUNCHER_VARIABLE: "1"}, "it is a run of a sweep"),
        ({"WORLD_SIZE": "1", "RANK": "0"}, "torchrun has started it"),
    ],
)
def test_run_that_another_program_has_started_has_one(
    variables: dict[str, str], reason: str
) -> None:
    assert choose(variables=variables)[1] == f"learners=1, because {reason}"


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (Machine(TWO_CORES.cores[:1]), "there is one core"),
        (TWO_CORES._replace(quota=1.5), "there is one core"),
        (Machine((Core((0, 1)),)), "there is one core"),
    ],
    ids=["core", "quota", "hyperthreads"],
)
def test_machine_of_one_core_has_one(machine: Machine, reason: str) -> None:
    assert choose(machine=machine)[1] == f"learners=1, because {reason}"


def test_quota_says_how_many() -> None:
    four = Machine(tuple(Core((cpu,)) for cpu in range(4)), 2.5)
    assert choose(machine=four)[0].learners == 2


def test_run_on_gpus_has_one_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("gpus=2")[0].learners == 2
    assert choose("gpus=2")[1] == "learners=2, because gpus=2"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert choose()[1] == "learners=1, because it has a GPU"
    assert choose("device=cpu")[0].learners == 2


def test_run_that_was_not_measured_to_be_faster_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "is_faster", lambda config, num: False)
    assert "not measured to be faster" in choose()[1]


@pytest.mark.parametrize(
    ("options", "num", "holds"),
    [
        (["env=breakout"], 2, True),
        (["env=breakout"], 4, False),
        (["env=catch"], 2, True),
        (["env=breakout", "algo=ppo"], 2, True),
        (["env=breakout", "algo=dqn"], 2, False),
    ],
)
def test_rule_is_what_was_measured(options: list[str], num: int, holds: bool) -> None:
    assert RULE(parse_arguments(options), num) == holds


def test_number_that_is_given_stays() -> None:
    config, sentence = choose("learners=3")
    assert (config.learners, config.serial, sentence) == (3, False, "")


def test_unknown_environment_is_refused_as_ever() -> None:
    with pytest.raises(ValueError, match="env=no_such_game"):
        choose("env=no_such_game")


@pytest.mark.parametrize("value", ["0", "none", "many", "1.5", "true"])
def test_learners_of_another_kind_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"learners.* (integer|at least 1).*auto"):
        parse_arguments([f"learners={value}"])
    with pytest.raises(ValueError, match=r"learners is .* integer.*auto"):
        TrainConfig(learners=value)  # type: ignore[arg-type]


# ---- algorithms of the user's own --------------------------------------------------------------


class Silent(A2CConfig):
    """It does not say how it divides, and its base class does not say so for it."""

    make_learner = A2CConfig.make_learner


class Speaking(Silent):
    make_learner, batches = A2CConfig.make_learner, A2CConfig.batches


def test_class_that_does_not_say_how_it_divides_has_one() -> None:
    for learner, num in ((Silent(), 1), (Speaking(), 2)):
        config = dataclasses.replace(parse_arguments(list(LONG)), learner=learner)
        assert choose_learners(config, (), TWO_CORES, {})[0].learners == num


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alone(A2CConfig):
    """It refuses several learners, although it says how it divides."""

    make_learner, batches = A2CConfig.make_learner, A2CConfig.batches

    def check_run(self, run: RunOptions) -> None:
        if run.num_learners > 1:
            raise ValueError("no learners=2 for Alone; use learners=1")


def test_class_that_refuses_several_has_one() -> None:
    config = dataclasses.replace(parse_arguments(list(LONG)), learner=Alone())
    sentence = choose_learners(config, (), TWO_CORES, {})[1]
    assert sentence == "learners=1, because no learners=2 for Alone"


# ---- from the command line -----------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What learners are started with, in place of starting them."""
    found: list[list[str]] = []

    def launch(arguments: list[str], num_learners: int, *, goes_on: bool) -> int:
        found.append([*arguments, str(num_learners)])
        return 0

    monkeypatch.setattr("accel_rl.cli.run.launch", launch)
    monkeypatch.setattr(auto, "read_machine", lambda: TWO_CORES)
    return found


@pytest.mark.parametrize("options", [[], ["learners=auto"]])
def test_learners_are_started_with_what_was_chosen(
    options: list[str], launched: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*LONG, *options]) == 0
    assert launched == [[*LONG, "learners=2", "serial=true", "2"]]
    assert capsys.readouterr().out == "learners=2 serial=true, because that is faster here\n"


def test_plan_says_what_a_run_would_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--plan", "env=catch", "total_steps=1000", "serial=true"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "learners=1, because total_steps=1,000 is below 100,000"
    assert last.startswith("measured here")


@pytest.mark.processes
def test_short_run_says_why_it_has_one_and_keeps_its_number(
    tmp_path: Path,
    launched: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "LEAST_STEPS", 80)
    short = ["env=catch", "total_steps=80", "num_envs=4", "num_workers=1"]
    assert run([*short, f"run_dir={tmp_path / 'run'}"]) == 0
    assert "\nlearners=1, because num_workers is given\n" in capsys.readouterr().out
    assert "\nlearners: 1\n" in (tmp_path / "run" / "config.yaml").read_text()
    assert run([f"resume={tmp_path / 'run'}", "total_steps=120", "learners=auto"]) == 0
    assert "learners" not in capsys.readouterr().out
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("\nlearners: 1\n", "\nlearners: 2\n"))
    assert run([f"resume={tmp_path / 'run'}", "total_steps=2e6", "learners=auto"]) == 0
    assert launched[-1][-1] == "2"
