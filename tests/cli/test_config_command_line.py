"""Options given as key=value: what they become, what is refused, and what --help says."""

import os
import subprocess
import sys
from typing import Any

import pytest

from accel_rl.__main__ import COMMANDS, main
from accel_rl.cli.parse import USAGE, help_text, parse_arguments, resolve_key
from accel_rl.options import Option, list_options
from accel_rl.parallel import Team
from accel_rl.presets import PRESETS


def value_of(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config


def test_no_arguments_give_the_a2c_preset() -> None:
    assert parse_arguments([]) == PRESETS["a2c"]()


def test_algo_chooses_the_preset_wherever_it_stands() -> None:
    config = parse_arguments(["seed=3", "algo=a2c_baselines"])
    assert config.algo == "a2c_baselines"
    assert config.learner.rmsprop_decay == 0.99
    assert config.seed == 3


@pytest.mark.parametrize(
    ("argument", "key", "value"),
    [
        ("env=ms_pacman", "env", "ms_pacman"),
        ("env=1e3", "env", "1e3"),
        ("env=mine:make", "env", "mine:make"),
        ("total_steps=3e6", "total_steps", 3_000_000),
        ("total_steps=3000000.0", "total_steps", 3_000_000),
        ("total_steps=3_000_000", "total_steps", 3_000_000),
        ("sampler.num_envs=64", "sampler.num_envs", 64),
        ("num_envs=64", "sampler.num_envs", 64),
        ("num_workers=3", "sampler.num_workers", 3),
        ("num_workers=none", "sampler.num_workers", None),
        ("num_workers=null", "sampler.num_workers", None),
        ("sticky_actions=0.25", "atari.sticky_actions", 0.25),
        ("sticky_actions=0", "atari.sticky_actions", 0.0),
        ("observation_size=84x84", "atari.observation_size", "84x84"),
        ("episodic_lives=false", "atari.episodic_lives", False),
        ("lr=1e-3", "learner.lr", 1e-3),
        ("max_gradient_norm=none", "learner.max_gradient_norm", None),
        ("cpus=[0,2]", "cpus", (0, 2)),
        ("run_dir=runs/1", "run_dir", "runs/1"),
        ("run_dir=none", "run_dir", None),
        ("reset_policy=wait", "sampler.reset_policy", "wait"),
    ],
)
def test_option_becomes_its_value(argument: str, key: str, value: Any) -> None:
    found = value_of(parse_arguments([argument]), key)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["total_step=5"], r"unknown option total_step; did you mean total_steps"),
        (["entropy_coef=1"], r"did you mean entropy_coefficient\?$"),
        (["sampler.num_env=5"], r"unknown option sampler.num_env; did you mean sampler.num_envs"),
        (["learning_rate=1"], r"unknown option learning_rate; did you mean lr\?$"),
        (["qqqq=1"], r"unknown option qqqq; --help=all lists all"),
        (["sampler=3"], r"sampler is a group of options"),
        (["algo=a2d"], r"algo=a2d is unknown; did you mean a2c"),
        (["algo=sarsa"], r"algo=sarsa is unknown; there are a2c, a2c_baselines, a3c, paac, ga3c"),
        (["num_envs=many"], r"sampler.num_envs=many is not valid; it must be: integer"),
        (["num_envs=2.5"], r"sampler.num_envs=2.5 is not valid; it must be: integer"),
        (["num_envs="], r"sampler.num_envs= is not valid; it must be: integer"),
        (["num_envs=true"], r"sampler.num_envs=true is not valid; it must be: integer"),
        (["num_workers=x"], r"num_workers=x is not valid; it must be: integer or none"),
        (["num_envs=none"], r"num_envs=none is not valid"),
        (["sticky_actions=often"], r"atari.sticky_actions=often is not valid; it must be: number"),
        (["clip_reward=perhaps"], r"clip_reward=perhaps is not valid; it must be: true\|false"),
        (["reset_policy=later"], r"reset_policy=later is not valid; .* immediate\|wait"),
        (["device=tpu"], r"device=tpu is not valid; it must be: auto\|cpu\|cuda"),
        (["cpus=0-3"], r"cpus=0-3 is not valid; it must be: list of integer"),
        (["num_envs=[1"], r"sampler.num_envs=\[1 is not valid"),
        (["num_envs=0"], r"num_envs is 0; it must be at least 1"),
        (["env=${oc.env:HOME}"], r"env=\$\{oc.env:HOME\} is not valid; write the value itself"),
        (["run_dir=???"], r"run_dir=\?\?\? is not valid; write the value itself"),
        (
            ["evaluation_interval=9", "evaluation_steps=9", "evaluation_envs=10"],
            r"evaluation_envs=10 is more than evaluation_steps=9",
        ),
        (["num_envs=17"], r"num_envs=17 does not divide into num_groups=2"),
        (["sticky_actions=1.5"], r"sticky_actions is 1.5"),
        (["gamma=2"], r"gamma is 2.0; it must be from 0 to 1"),
        (["total_steps=-1"], r"total_steps is -1"),
        (["seed=1", "seed=2"], r"seed is given twice"),
        (["num_envs=4", "sampler.num_envs=8"], r"sampler.num_envs is given twice"),
        (["--num-envs=4"], r"options are written without dashes: num_envs=4"),
        (["--seed"], r"options are written without dashes: seed=VALUE"),
        (["breakout"], r"'breakout' is not of the form key=value without spaces"),
        (["=3"], r"'=3' is not of the form key=value"),
    ],
)
def test_wrong_argument_is_refused_with_the_way_out(arguments: list[str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        parse_arguments(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluation_steps=3"],
        ["evaluation_envs=3"],
        ["schedule_steps=1e9"],
        ["affinity=off", "cpus=[0]"],
        ["on_worker_failure=raise", "max_worker_restarts=3"],
        ["serial=true", "num_workers=2"],
        ["serial=true", "cpus=[0]"],
        ["serial=true", "learners=2", "affinity=off", "cpus=[0]"],
        ["lr=1e-3", "lr_base=1e-3"],
        ["algo=ppo", "gradient_norm_eps=0"],
        ["advantage_eps=1e-8"],
        ["env=catch", "sticky_actions=0.25"],
        ["env=CartPole-v1", "atari.frame_skip=2"],
    ],
    ids=" ".join,
)
def test_option_without_effect_is_refused(arguments: list[str]) -> None:
    key = arguments[-1].split("=")[0]
    with pytest.raises(ValueError, match=rf"{key}=.* has no effect, because .*; leave it out"):
        parse_arguments(arguments)


def test_limit_for_the_first_environment_may_be_given_with_a_serial_sampler() -> None:
    config = parse_arguments(["env=catch", "serial=true", "reset_timeout_seconds=5"])
    assert config.sampler.reset_timeout_seconds == 5


def test_short_key_of_two_options_is_refused_with_both() -> None:
    options = {key: Option(key, float, "", 0.0) for key in ("learner.lr", "critic.lr", "seed")}
    with pytest.raises(
        ValueError, match=r"lr may mean learner\.lr or critic\.lr; write it in full"
    ):
        resolve_key("lr", options)
    assert resolve_key("critic.lr", options) == "critic.lr"


@pytest.mark.parametrize("algo", PRESETS)
def test_help_lists_every_option_with_type_documentation_and_default(algo: str) -> None:
    text = help_text([f"algo={algo}", "--help=all"], width=100)
    lines = text.splitlines()
    for option in list_options(PRESETS[algo]()):
        (at,) = (i for i, each in enumerate(lines) if each.startswith(f"  {option.key}="))
        assert lines[at].endswith(f"({option.type_name})")
        assert lines[at + 1].split()[:2] == option.doc.split()[:2]
    for name in PRESETS:
        assert f"  {name}" in lines


def test_help_shows_the_defaults_of_the_preset_asked_about() -> None:
    assert "  learner.lr=none  (number or none)" in help_text(["--help"], 80)
    assert help_text(["--plan", "--help"], 80) == help_text(["--help"], 80)
    assert "  learner.lr=0.0007  (number or none)" in help_text(["algo=a2c_baselines", "-h"], 80)


@pytest.mark.parametrize("width", [80, 200])
def test_help_is_no_wider_than_the_terminal(width: int) -> None:
    text = help_text(["--help"], width)
    assert max(map(len, text.splitlines())) <= max(width, 97)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["total_step=5"], "unknown option total_step; did you mean total_steps"),
        (["env=braekout"], "breakout"),
        (["env=braekout", "serial=true"], "breakout"),
        (["model=nature", "env=CartPole-v1"], "model=nature needs images"),
        (["model=resnet"], "model is 'resnet'"),
        (["cpus=[4000]"], "4000"),
        (["num_envs=2", "num_workers=4"], "num_workers"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gives_one_message_and_exit_code_1(
    arguments: list[str], message: str, capfd, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "total_steps=100"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_cuda_without_a_gpu_is_refused(capfd, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["device=cuda"]) == 1
    assert (
        "device=cuda, but torch finds no GPU here; use device=cpu or auto" in capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "ranks", "message"),
    [
        (["gpus=2"], None, "gpus=2, but torch finds no GPU here; use gpus=0"),
        (["learners=0"], None, "learners is 0; it must be at least 1"),
        (["gpus=0", "device=cuda"], None, "gpus=0 contradicts device=cuda; leave out one"),
        (
            ["learners=3"],
            None,
            "num_envs=16 does not divide among 3 learners of 2 groups each",
        ),
        (
            ["algo=ppo", "learners=3", "num_envs=6", "horizon=512"],
            None,
            "minibatch_size=512 does not divide among 3 learners; use minibatch_size=384",
        ),
        (
            ["algo=ppo", "learners=3"],
            None,
            "num_envs=8 does not divide among 3 learners of 2 groups each; use "
            "num_envs=6 horizon=342 minibatch_size=513, or",
        ),
        (
            ["algo=dqn", "learners=2", "batch_size=2", "gradient_cosine_interval=5"],
            None,
            "batch_size=2 gives each of 2 learners one; use batch_size=4 or more",
        ),
        (["learners=2"], "4", "learners=2, but the launcher has started 4; leave it out"),
        (["sync_period=2"], None, "sync_period=2 needs Adam as the update rule"),
        (
            ["algo=ppo", "sync_period=2"],
            None,
            "parallel.sync_period=2 has no effect, because parallel.sync is all_reduce",
        ),
        (
            ["algo=a3c", "pull_steps=5"],
            None,
            "parallel.pull_steps=5 has no effect, because rollouts have sampler.horizon=5 steps",
        ),
        (
            ["learner_timeout_seconds=inf"],
            None,
            "learner_timeout_seconds is inf; it must be above 0 and at most 1,000,000,000",
        ),
        (["on_learner_failure=continue"], None, "on_learner_failure=continue needs sync=store"),
        (
            ["algo=rainbow", "reset_policy=wait"],
            None,
            "reset_policy=wait leaves steps out, which prioritized=true never draws",
        ),
        ([], "two", "WORLD_SIZE=two, LOCAL_RANK=0, LOCAL_WORLD_SIZE=two: each must be a number"),
    ],
)
def test_learners_that_cannot_be_had_are_refused(
    arguments, ranks, message, capfd, monkeypatch
) -> None:
    for name, value in {"RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    if ranks is not None:
        monkeypatch.setenv("WORLD_SIZE", ranks)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        monkeypatch.setattr("accel_rl.cli.run.end_with_parent", lambda: None)
        monkeypatch.setattr("accel_rl.cli.run.meet_by_store", lambda ranks, _: Team(ranks))
    assert main(["env=catch", *arguments]) == 1
    assert message in capfd.readouterr().err


@pytest.mark.parametrize("num_learners", [1, 2])
def test_used_run_directory_is_refused_before_learners_start(
    num_learners: int, capfd, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("accel_rl.cli.run.launch", lambda *_, **__: pytest.fail("they start"))
    (tmp_path / "notes.txt").write_text("mine")
    given = ["env=catch", f"run_dir={tmp_path}", "serial=true", f"learners={num_learners}"]
    assert main(given) == 1
    assert "is not empty, and a run never overwrites another" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_run_directory_in_an_impossible_place_is_refused(capfd) -> None:
    assert main(["env=catch", "run_dir=/dev/null/x", "serial=true"]) == 1
    assert "run_dir=/dev/null/x cannot be used: Not a directory" in capfd.readouterr().err


@pytest.mark.parametrize("algo", ["a2c", "ga3c"])
def test_elsewhere_than_linux_the_message_names_the_serial_sampler(
    algo: str, capfd, monkeypatch
) -> None:
    listdir = os.listdir

    def without_proc(path: str = ".") -> list[str]:
        assert not str(path).startswith("/proc/self/fd"), "only Linux has it"
        return listdir(path)

    monkeypatch.setattr(os, "listdir", without_proc)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main(["env=catch", f"algo={algo}"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("error: parallel samplers need Linux")
    assert "serial=true" in err


def test_several_learners_elsewhere_than_linux_are_refused(capfd, monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main(["env=catch", "learners=2", "serial=true"]) == 1
    assert capfd.readouterr().err.startswith("error: several learners need Linux, and this is da")


def test_store_elsewhere_than_linux_is_refused(capfd, monkeypatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert main(["env=catch", "algo=a3c", "serial=true"]) == 1
    assert capfd.readouterr().err.startswith("error: sync=store needs Linux, and this is ")


def test_help_into_a_closed_pipe_is_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(
        [sys.executable, "-m", "accel_rl", "--help"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    assert result.stderr == ""
    assert result.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "num_envs", "horizon"),
    [
        (["algo=ppo"], 8, 256),
        (["algo=ppo", "num_envs=512"], 512, 4),
        (["algo=ppo", "sampler.num_envs=6.4e1"], 64, 32),
        (["algo=ppo", "num_envs=4", "horizon=128"], 4, 128),
        (["algo=a2c", "num_envs=64"], 64, 5),
    ],
)
def test_ppo_keeps_its_batch_when_simulators_grow(
    arguments: list[str], num_envs: int, horizon: int
) -> None:
    sampler = parse_arguments(arguments).sampler
    assert (sampler.num_envs, sampler.horizon) == (num_envs, horizon)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["algo=paac", "num_envs=64"], {"learner.lr": 0.0448, "sampler.num_envs": 64}),
        (["algo=ga3c", "num_envs=16"], {"sampler.num_groups": 16, "sampler.num_envs": 16}),
        (["algo=ppo", "num_envs=48"], {"learner.lr": 1e-3, "sampler.num_envs": 48}),
        (["algo=appo", "num_envs=48"], {"learner.lr": 2.5e-4, "sampler.num_envs": 48}),
    ],
)
def test_horizon_that_is_given_leaves_the_other_rules_of_a_preset(
    arguments: list[str], expected: dict[str, Any]
) -> None:
    config = parse_arguments([*arguments, "horizon=32"])
    found = {key: value_of(config, key) for key in expected}
    assert (found, config.sampler.horizon) == (expected, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["algo=ppo", "num_envs=100"], "num_envs=100 does not divide PPO's 2048 steps"),
        (["algo=ppo", "num_envs=many"], "num_envs=many is not valid; it must be: integer"),
        (["algo=ppo", "minibatch_size=500"], "minibatch_size=500 does not divide a rollout"),
        (["algo=cat_dqn", "num_atoms=100000"], "num_atoms is 100000; it must be from 1 to 10,000"),
        (["algo=dqn", "v_min=-3"], "v_min=-3 has no effect, because learner.num_atoms is 1"),
        (["algo=cat_dqn", "priority_alpha=1"], "has no effect, because learner.prioritized is fal"),
        (["algo=dqn", "adam_eps=1"], "adam_eps=1 has no effect, because learner.optimizer is rms"),
        (["algo=dqn", "total_steps=1000"], "ends before learning begins, after min_steps=50000"),
        (["seed=1e30"], "it must be from 0 to 2"),
        (["algo=ppo", "lr_base=1"], "lr_base=1 cannot be given with algo=ppo, .* algo=a2c, a2c_b"),
        (
            ["learner.double=true"],
            "with algo=a2c, which has no such option; .* algo=dqn",
        ),
        (["algo=ppo", "bogus=1"], "unknown option bogus"),
        (
            ["gradient_cosine_interval=9", "num_envs=1", "num_groups=1"],
            "but num_envs is 1; use a larger num_envs",
        ),
    ],
)
def test_options_of_an_algorithm_that_do_not_fit_are_refused(
    arguments: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        parse_arguments(arguments)


def test_one_environment_in_one_process_can_be_had() -> None:
    config = parse_arguments(["algo=a3c", "num_envs=1", "num_groups=1", "serial=true"])
    assert (config.sampler.num_envs, config.sampler.num_groups) == (1, 1)


def test_usage_names_every_command() -> None:
    lines = [each.partition("accel_rl ")[2] for each in USAGE.splitlines()]
    named = {name for line in lines for name in line.split(" ")[0].split("|")}
    assert set(COMMANDS) <= named
