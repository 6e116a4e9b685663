"""Options given as key=value: what they become, what is refused, and what --help says."""

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from launched_runs import started
from options_index import make_index
from refusals import rows, words

from accel_rl.__main__ import main
from accel_rl.cli.help import (
    COMMANDS,
    completion,
    main_help,
    presets_table,
    train_help,
)
from accel_rl.cli.index import PATH, read_index
from accel_rl.cli.parse import from_texts, make_config, parse_arguments, to_texts
from accel_rl.cli.suggest import resolve_key
from accel_rl.options import Option, list_options
from accel_rl.parallel import Team
from accel_rl.presets import PRESETS


def values_of(arguments: str, names: Iterable[str]) -> dict[str, Any]:
    """Options by their short names."""
    options = list_options(parse_arguments(arguments.split()))
    values = {option.name: option.default for option in options}
    return {name: values[name] for name in names}


def test_no_arguments_give_the_a2c_preset() -> None:
    assert parse_arguments([]) == PRESETS["a2c"]()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "env=ms_pacman total_steps=3e6 num_envs=64 num_workers=3 sticky_actions=0.25 lr=1e-3 "
            "observation_size=84x84 episodic_lives=false max_gradient_norm=none info_keys=[a,b] "
            "run_dir=runs/1 reset_policy=wait",
            {
                "env": "ms_pacman",
                "total_steps": 3_000_000,
                "num_envs": 64,
                "num_workers": 3,
                "sticky_actions": 0.25,
                "lr": 1e-3,
                "observation_size": "84x84",
                "episodic_lives": False,
                "max_gradient_norm": None,
                "info_keys": ("a", "b"),
                "run_dir": "runs/1",
                "reset_policy": "wait",
            },
        ),
        (
            "env=1e3 total_steps=3000000.0 sampler.num_envs=64 num_workers=none run_dir=none",
            {
                "env": "1e3",
                "total_steps": 3_000_000,
                "num_envs": 64,
                "num_workers": None,
                "run_dir": None,
            },
        ),
        (
            "env=mine:make total_steps=3_000_000 num_workers=null",
            {"env": "mine:make", "total_steps": 3_000_000, "num_workers": None},
        ),
        ("sticky_actions=0", {"sticky_actions": 0.0}),
    ],
    ids=["usual", "none", "null", "float"],
)
def test_option_becomes_its_value(arguments: str, expected: dict[str, Any]) -> None:
    found = values_of(arguments, expected)
    assert found == expected
    assert [type(each) for each in found.values()] == [type(each) for each in expected.values()]


def test_options_of_a_program_are_those_of_the_command_line() -> None:
    options = {"algo": "ppo", "lr": 1 / 3e4, "info_keys": ("a", "b"), "seed": "3", "memory": None}
    config = make_config(options | {"clip_value": True, "total_steps": 3e6, "sampler.num_envs": 64})
    assert (config.learner.lr, config.learner.clip_value) == (1 / 3e4, True)
    assert (config.info_keys, config.seed, config.memory) == (("a", "b"), 3, None)
    assert (config.total_steps, config.sampler.num_envs, config.sampler.horizon) == (3e6, 64, 32)
    with pytest.raises(ValueError, match="unknown option learning_rate; did you mean lr"):
        make_config({"learning_rate": 1e-3})


@pytest.mark.parametrize("algo", PRESETS)
def test_other_learners_get_the_options_of_the_first(algo: str) -> None:
    options = {"info_keys": ("a", "b"), "run_dir": "ü", "max_minutes": 1 / 3}
    for config in (PRESETS[algo](), dataclasses.replace(PRESETS[algo](), seed=2**60, **options)):
        found = from_texts(json.loads(json.dumps(to_texts(config))))
        assert found == config and repr(found) == repr(config)
    with pytest.raises(ValueError, match="unknown option brand_new"):
        from_texts(to_texts(config) | {"brand_new": "3"})


# What another library calls ours, words of several options, and slips.
UNKNOWN = """
algo=dqn min_steps=1 | did you mean learning_starts?
time_limit_terminal=true | did you mean bootstrap_on_truncation?
lstm=true | did you mean memory?
algo=sac learner.temperature=1 | did you mean learner.alpha?
entropy=1 | did you mean entropy_coefficient?
algo=dqn buffer=1 | did you mean buffer_size?
total_step=5 | did you mean total_steps?
epsilon=1 | --help=all lists all

learning_rate=1 | did you mean lr?
ent_coef=1 | did you mean entropy_coefficient?
total_timesteps=1 | did you mean total_steps?
n_envs=1 | did you mean num_envs?
algo=dqn n_steps=1 | did you mean n_step?
algo=ppo clip=1 | did you mean clip_reward or clip_range or clip_schedule?
algo=ppo batch_size=1 | did you mean minibatch_size?
algo=dqn gradient_steps=1 | did you mean training_intensity?
policy=MlpPolicy | did you mean model?
algo=dqn batch=1 | did you mean batch_size?
algo=dqn epsilon=1 | did you mean epsilon_final or epsilon_steps or epsilon_per_env?
sampler.workers=1 | did you mean sampler.num_workers?
sampler.num_env=5 | did you mean sampler.num_envs?
algo=dqn ent_coef=1 | --help=all lists all
"""


@pytest.mark.parametrize(("arguments", "answer"), rows(UNKNOWN))
def test_unknown_option_gives_ours(arguments: str, answer: str) -> None:
    name = arguments.split()[-1].partition("=")[0]
    with pytest.raises(ValueError) as info:
        parse_arguments(arguments.split())
    assert str(info.value) == f"unknown option {name}; {answer}"


WRONG = """
sampler=3 | sampler group of options
algo=a2d | algo=a2d unknown a2c
num_envs=many | sampler.num_envs=many must be: integer
memory=rnn | memory=rnn must be: lstm|gru or none
reset_policy=later | reset_policy=later immediate|wait
env=${oc.env:HOME} | env=${oc.env:HOME} write the value itself
resume= | resume= name one, or leave it out
seed=1 seed=2 | seed is given twice
--num-envs=4 | without dashes: num_envs=4
breakout | 'breakout' key=value
=3 | '=3' key=value

algo=sarsa | algo=sarsa unknown a2c, a2c_baselines, a3c, paac, ga3c
num_envs= | sampler.num_envs= must be: integer
num_envs=[1 | sampler.num_envs=[1 must be
sticky_actions=often | atari.sticky_actions=often must be: number
clip_reward=perhaps | clip_reward=perhaps must be: true|false
run_dir=??? | run_dir=??? write the value itself
num_envs=4 sampler.num_envs=8 | sampler.num_envs is given twice
--seed | without dashes: seed=VALUE
"""
MISFITS = """
num_envs=17 | num_envs=17 num_groups=2
seed=1e30 | it must be from 0 to 2
gamma=2 | gamma is 2.0; from 0 to 1
algo=dqn v_min=-3 | v_min=-3 no effect learner.num_atoms is 1
algo=ppo rmsprop_decay=1 | rmsprop_decay=1 algo=ppo, algo=a2c, a2c_b
lr=1e-3,3e-4 | several values are for `sweep`

total_steps=-1 | total_steps is -1
algo=ppo num_envs=100 | num_envs=100 2048
algo=ppo minibatch_size=500 | minibatch_size=500 rollout
algo=cat_dqn num_atoms=100000 | num_atoms is 100000; from 1 to 10,000
algo=cat_dqn priority_alpha=1 | priority_alpha=1 no effect learner.prioritized is fal
algo=dqn adam_eps=1 | adam_eps=1 no effect learner.optimizer is rms
algo=dqn total_steps=1000 | before learning begins learning_starts=50000
learner.double=true | algo=a2c, no such option; algo=dqn
algo=pqn num_envs=100 horizon=5 | minibatch_size=128 does not divide use minibatch_size=
algo=pqn memory=lstm minibatch_size=16 | multiple of horizon=32 use minibatch_size=32
algo=pqn parallel.sync=store sync_period=2 | Adam algo=pqn RAdam( sync_
algo=ppo_mujoco parallel.sync=store sync_period=2 | Adam ppo_mujoco eps_after_correction=True
algo=dqn previous_action_reward=true | previous_action_reward=true no effect memory is none
algo=dqn memory=lstm burn_in=90 | burn_in=90 sequence_length=16, smaller burn
algo=dqn memory=lstm batch_size=40 | batch_size=40 =16 use batch_size=48
algo=dqn memory=lstm batch_size=160 learners=3 | batch_size=160 each of 3 learners batch_size=192
algo=dqn burn_in=8 | burn_in=8 no effect memory is none
algo=dqn memory=lstm sequence_length=0 | sequence_length is 0; at least
algo=dqn memory=lstm burn_in=-1 | burn_in is -1; at least 0
"""


@pytest.mark.parametrize(("arguments", "said"), rows(WRONG) + rows(MISFITS))
def test_wrong_argument_is_refused_with_the_way_out(arguments: str, said: str) -> None:
    with pytest.raises(ValueError, match=words(said)):
        parse_arguments(arguments.split())


def test_short_key_of_two_options_is_refused_with_both() -> None:
    options = {key: Option(key, float, object, 0.0) for key in ("learner.lr", "critic.lr", "seed")}
    with pytest.raises(
        ValueError, match=r"lr may mean learner\.lr or critic\.lr; write it in full"
    ):
        resolve_key("lr", options)
    assert resolve_key("critic.lr", options) == "critic.lr"


@pytest.mark.parametrize("algo", PRESETS)
def test_help_lists_every_option_with_type_documentation_and_default(algo: str) -> None:
    text = train_help([f"algo={algo}", "--help=all"], width=100)
    lines = text.splitlines()
    for option in list_options(PRESETS[algo]()):
        (at,) = (i for i, each in enumerate(lines) if each.startswith(f"  {option.key}="))
        assert lines[at].endswith(f"({option.type_name})")
        assert lines[at + 1].split()[:2] == option.doc.split()[:2]


def test_help_shows_the_defaults_of_the_preset_asked_about() -> None:
    assert re.search(r"^  lr=none +Learning rate", train_help(["--help"], 80), re.M)
    assert train_help(["--plan", "--help"], 80) == train_help(["--help"], 80)
    assert re.search(r"^  lr=0.0007 ", train_help(["algo=a2c_baselines", "-h"], 80), re.M)
    assert re.search(r"^  smoothness", train_help(["algo=examples.own_algorithm:make"], 80), re.M)
    with pytest.raises(ValueError, match="algo=a2d is unknown; did you mean a2c"):
        train_help(["algo=a2d"], 80)


def test_help_of_the_program_is_a_screen_with_commands_and_presets(capfd) -> None:
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        assert main(arguments) == 0
        assert capfd.readouterr().out == main_help() + "\n"
    assert len(main_help().splitlines()) <= 30
    words = main_help().split()
    assert {*COMMANDS, *PRESETS} <= {*words}


def test_table_of_presets_is_made_from_them() -> None:
    rows = {line.split()[0]: line.split()[1:] for line in presets_table(200).splitlines()}
    assert {*PRESETS} <= {*rows}
    assert rows["sac"][:4] == ["floats", "no", "in", "step"]
    assert rows["dqn"][:4] == ["discrete", "yes", "in", "step"]
    assert rows["appo"][:3] == ["any", "yes", "store"] and rows["ga3c"][2] == "one"
    assert "arXiv:1707" not in presets_table(200) and "arXiv:1803.02811" in presets_table(200)


def test_index_of_options_is_that_of_the_presets() -> None:
    assert read_index() == make_index(), f"python tests/helpers/options_index.py writes {PATH} anew"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--help", 0),
        ("train algo=ppo --help", 0),
        ("evaluate --help", 0),
        ("presets", 0),
        ("completion bash", 0),
        ("train algo=ppo learning_rate=1", 1),
        ("train algo=pp", 1),
        ("algo=ppo", 1),
    ],
)
def test_help_and_misspelt_options_load_no_torch(arguments: str, code: int) -> None:
    program = (
        "import resource, sys; from accel_rl.__main__ import main; found = main(sys.argv[1:]); "
        "assert not {'torch', 'numpy', 'rich'} & {*sys.modules}; sys.exit(found)"
    )
    with started("-c", program, *arguments.split(), is_warm=False) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert said.count("\n") == code


COMPLETED = """
tra | train
train alg | algo=
train algo=ppo_ | ppo_baselines ppo_mujoco
train algo = ppo_ | ppo_baselines ppo_mujoco
train memory= | lstm gru none
train memory = | lstm gru none
evaluate num_ep | num_episodes=
"""


@pytest.mark.processes
@pytest.mark.parametrize(("typed", "found"), rows(COMPLETED))
def test_shell_completes_commands_options_and_presets(typed: str, found: str) -> None:
    """As bash has it, to which = is a word of its own, and as zsh."""
    words_ = ["accel_rl", *typed.split()]
    script = (
        completion("bash")
        + f"""
COMP_WORDS=({" ".join(map(shlex.quote, words_))}); COMP_CWORD={len(words_) - 1}
_accel_rl; echo "${{COMPREPLY[@]}}"
"""
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    prefix = "algo=" if "algo=" in typed else "memory=" if "memory=" in typed else ""
    assert done.stdout.split() == [f"{prefix}{each}" for each in found.split()]


BAD = """
env=braekout | breakout
model=nature env=CartPole-v1 | model=nature pictures

total_step=5 | total_steps
model=resnet | model is 'resnet'
num_envs=2 num_workers=4 | num_workers
run_dir=/dev/null/x | run_dir=/dev/null/x Not a directory
"""


@pytest.mark.parametrize(("arguments", "said"), rows(BAD))
def test_bad_input_gives_one_message_and_exit_code_1(
    arguments: str, said: str, capfd, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments.split(), "total_steps=100"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert re.match(words(f"error: {said}"), err)
    assert "Traceback" not in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


LEARNERS = """
learners=3 | num_envs=16 3 learners
learners=2 WORLD_SIZE=4 | learners=2 4; leave it out
algo=a3c pull_steps=5 | parallel.pull_steps=5 no effect sampler.horizon=5

gpus=2 | gpus=2 gpus=0
device=cuda | device=cuda device=cpu or auto
gpus=0 device=cuda | gpus=0 device=cuda
algo=ppo learners=3 num_envs=6 horizon=512 | minibatch_size=512 3 learners; minibatch_size=384
algo=ppo learners=3 | num_envs=8 3 learners num_envs=6
WORLD_SIZE=two | WORLD_SIZE=two must be a number
sync_period=2 | sync_period=2 Adam
algo=ppo sync_period=2 | parallel.sync_period=2 no effect parallel.sync is all_reduce
algo=rainbow reset_policy=wait | reset_policy=wait prioritized=true
"""


@pytest.mark.parametrize(("arguments", "said"), rows(LEARNERS))
def test_learners_that_cannot_be_had_are_refused(
    arguments: str, said: str, capfd, monkeypatch
) -> None:
    given, _, ranks = arguments.partition("WORLD_SIZE=")
    if ranks:
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, "0")
        monkeypatch.setenv("WORLD_SIZE", ranks)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        monkeypatch.setattr("accel_rl.cli.run.end_with_parent", lambda: None)
        monkeypatch.setattr("accel_rl.cli.run.meet_by_store", lambda ranks, _: Team(ranks))
    assert main(["train", "env=catch", *given.split()]) == 1
    assert re.match(words(f"error: {said}"), capfd.readouterr().err)


@pytest.mark.parametrize("num_learners", [1, 2])
def test_used_run_directory_is_refused_before_learners_start(
    num_learners: int, capfd, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("accel_rl.cli.run.launch", lambda *_, **__: pytest.fail("they start"))
    (tmp_path / "notes.txt").write_text("mine")
    given = ["env=catch", f"run_dir={tmp_path}", "num_workers=0", f"learners={num_learners}"]
    assert main(["train", *given]) == 1
    assert "is not empty, and a run never overwrites another" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


ELSEWHERE = """
algo=a2c | parallel samplers need Linux num_workers=0
algo=a3c num_workers=0 | sync=store needs Linux

algo=ga3c | parallel samplers need Linux num_workers=0
learners=2 num_workers=0 | several learners need Linux
"""


@pytest.mark.parametrize(("arguments", "said"), rows(ELSEWHERE))
def test_elsewhere_than_linux_the_message_says_what_needs_it(
    arguments: str, said: str, capfd, monkeypatch
) -> None:
    listdir = os.listdir

    def without_proc(path: str = ".") -> list[str]:
        assert not str(path).startswith("/proc/self/fd"), "only Linux has it"
        return listdir(path)

    monkeypatch.setattr(os, "listdir", without_proc)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "memfd_create")
    assert main(["train", "env=catch", *arguments.split()]) == 1
    assert re.match(words(f"error: {said}"), capfd.readouterr().err)


@pytest.mark.processes
def test_help_into_a_closed_pipe_is_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    with started("-m", "accel_rl", "--help", stdout=write) as program:
        os.close(write)
        assert program.communicate() == (None, "")
    assert program.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("algo=ppo", {"num_envs": 8, "horizon": 256}),
        ("algo=ppo num_envs=512", {"num_envs": 512, "horizon": 4}),
        ("algo=ppo sampler.num_envs=6.4e1", {"num_envs": 64, "horizon": 32}),
        ("algo=ppo num_envs=4 horizon=128", {"num_envs": 4, "horizon": 128}),
        ("algo=a2c num_envs=64", {"num_envs": 64, "horizon": 5}),
        ("algo=paac num_envs=64 horizon=32", {"lr": 0.0448, "num_envs": 64, "horizon": 32}),
        ("algo=ga3c num_envs=16 horizon=32", {"num_groups": 16, "num_envs": 16, "horizon": 32}),
        ("algo=ppo num_envs=48 horizon=32", {"lr": 1e-3, "num_envs": 48, "horizon": 32}),
        ("algo=appo num_envs=48 horizon=32", {"lr": 2.5e-4, "num_envs": 48, "horizon": 32}),
    ],
)
def test_preset_follows_num_envs_where_no_option_says_otherwise(
    arguments: str, expected: dict[str, Any]
) -> None:
    assert values_of(arguments, expected) == expected


@pytest.mark.parametrize(
    ("options", "number"),
    [([], 1), (["gpus=0"], 1), (["gpus=2"], 2), (["gpus=2", "learners=3"], 3)],
)
def test_run_has_one_learner_or_one_for_each_gpu_unless_learners_says_otherwise(
    options: list[str], number: int
) -> None:
    assert parse_arguments(options).num_learners == number
