"""Options from a YAML file, a run's own among them: what counts, what is refused."""

import dataclasses
import re
from pathlib import Path

import pytest
from refusals import rows, words
from saved_runs import trained

from accel_rl.__main__ import main
from accel_rl.cli.parse import parse_arguments
from accel_rl.config import TrainConfig
from accel_rl.parallel import Team
from accel_rl.presets import PRESETS
from accel_rl.runs.directory import write_config
from accel_rl.runs.saved import read_config
from accel_rl.sweeps.command import make_directory
from accel_rl.sweeps.plan import SweepOptions, plan_runs, read_options, read_plan


def saved(tmp_path: Path, *arguments: str) -> str:
    """The config of a run with these arguments, as it is saved, as an argument."""
    config = dataclasses.replace(parse_arguments(arguments), run_dir="runs/first")
    write_config(config, tmp_path / "config.yaml")
    return f"config={tmp_path / 'config.yaml'}"


def written(tmp_path: Path, text: str) -> str:
    """A file of one's own, as an argument."""
    (tmp_path / "my.yaml").write_text(text)
    return f"config={tmp_path / 'my.yaml'}"


OTHERWISE = {
    "ppo": ["num_envs=48", "horizon=256", "minibatch_size=3072"],
    "dqn": ["batch_size=600", "num_envs=20", "save_replay=true"],
    "rainbow": ["batch_size=96", "evaluation_interval=0"],
    "paac": ["num_envs=6", "lr=0.0123456789", "max_gradient_norm=none"],
    "ga3c": ["num_envs=12", "num_groups=6", "tuner=false"],
    "a2c": ["env=catch", "num_workers=0", "num_envs=1", "num_groups=1", "decorrelation_steps=0"],
    "a3c": ["num_workers=0", "learners=2", "info_keys=[a,b]", "affinity=auto"],
    "a2c_baselines": ["info_keys=[a]", "affinity=auto", "total_steps=3e6", "atari.frame_skip=3"],
}


@pytest.mark.parametrize(
    ("algo", "is_preset"),
    [
        *(("ppo", False), ("rainbow", True)),
        *(pytest.param(algo, False, marks=pytest.mark.slow) for algo in ("dqn", "ga3c", "a3c")),
        *(pytest.param(algo, True, marks=pytest.mark.nightly) for algo in PRESETS),
    ],
)
def test_config_of_a_run_gives_the_same_run(algo: str, is_preset: bool, tmp_path) -> None:
    arguments = [f"algo={algo}", *([] if is_preset else OTHERWISE.get(algo, ["seed=3"]))]
    assert parse_arguments([saved(tmp_path, *arguments)]) == parse_arguments(arguments)


SAME = """
algo=ppo num_envs=64 | num_envs=128 | algo=ppo num_envs=128 horizon=32
algo=paac num_envs=64 | num_envs=16 | algo=paac num_envs=16 lr=0.0448

algo=ppo num_envs=64 | seed=2 | algo=ppo num_envs=64 seed=2
algo=ppo num_envs=64 | horizon=64 | algo=ppo num_envs=64 horizon=64
algo=dqn batch_size=2048 | num_envs=64 | algo=dqn batch_size=2048 num_envs=64
env=catch seed=1 lr=1e-3 | learner.lr=1e-2 | env=catch seed=1 lr=1e-2
"""


@pytest.mark.parametrize(("run", "given", "same_as"), rows(SAME))
def test_all_that_a_file_says_counts_as_given(run: str, given: str, same_as: str, tmp_path) -> None:
    """What its preset would scale by num_envs or batch_size, too."""
    found = parse_arguments([*given.split(), saved(tmp_path, *run.split())])
    assert found == parse_arguments(same_as.split())


def test_keys_of_a_file_may_be_short_dotted_or_in_groups(tmp_path) -> None:
    text = "algo: ppo\nlr: 2e-3\ntotal_steps: 3e6\natari.frame_skip: 2\nsampler: {num_envs: 16}\n"
    config = parse_arguments([written(tmp_path, text + "info_keys: [a]\nrun_dir: old\n"), "seed=1"])
    rest = "lr=2e-3 total_steps=3e6 frame_skip=2 num_envs=16 info_keys=[a] seed=1"
    assert config == parse_arguments(["algo=ppo", *rest.split()])


def test_off_and_on_need_no_quotes(tmp_path) -> None:
    config = parse_arguments([written(tmp_path, "cuda_graphs: on\nsampler: {affinity: off}")])
    assert (config.cuda_graphs, config.sampler.affinity) == ("on", "off")


def test_number_with_a_zero_before_is_what_the_command_line_takes_it_for(tmp_path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("algo: ppo\nenv: catch\nseed: 010  # 8 in YAML 1.1\n")
    assert parse_arguments([f"config={file}"]).seed == parse_arguments(["seed=010"]).seed == 10


# Text of the file, with ; for the end of a line; what follows the file's name in the message.
FILES = """
seeed: 1 | : unknown option seeed; did you mean seed?
rmsprop_decay: 1 & algo=ppo | : rmsprop_decay=1 algo=ppo
algo: a2c;rmsprop_decay: 1 & algo=ppo | : rmsprop_decay=1 algo=ppo
algo: ppo;num_envs: many | : sampler.num_envs=many must be: integer
seed: 1;seed: 2 | cannot be read: line 2: duplicate key seed
resume: runs/x | says resume
seed: 1 & resume=runs/x | cannot be given with resume=runs/x
- seed | holds no options

sampler: {num_env: 8} | : unknown option sampler.num_env; did you mean
lr: 1;learner: {lr: 2} | : learner.lr is given twice
sampler: {num_envs: 8};sampler.num_envs: 4 | : sampler.num_envs is given twice
config: a | : unknown option config
env: ${HOME} | cannot be read: env is ${HOME}
env: catch & atari.frame_skip=2 | : atari.frame_skip=2 no effect env=catch
a: 1;  b: 2 | cannot be read: line 2: mapping values
seed: @ | cannot be read: line 1: found character
"""


@pytest.mark.parametrize(("given", "said"), rows(FILES))
def test_file_that_cannot_be_had_is_refused_by_name(given: str, said: str, tmp_path) -> None:
    text, _, arguments = given.partition(" & ")
    argument = written(tmp_path, text.replace(";", "\n"))
    with pytest.raises(ValueError, match=words(f"{argument.partition('=')[2]} {said}")):
        parse_arguments([argument, *arguments.split()])


def test_file_that_is_not_there_or_a_directory_or_empty_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="absent cannot be read: No such file or directory"):
        parse_arguments(["config=absent"])
    with pytest.raises(ValueError, match=r"is a directory; name a file, as in .*/config\.yaml"):
        parse_arguments([f"config={tmp_path}"])
    with pytest.raises(ValueError, match="holds no options"):
        parse_arguments([written(tmp_path, "")])
    for plan in (lambda: plan_runs({"seed": "0"}, ""), lambda: parse_arguments(["config="])):
        with pytest.raises(ValueError, match="is a directory; name a file"):
            plan()


def test_run_is_repeated_in_a_directory_of_its_own(tmp_path, monkeypatch) -> None:
    run_dir = trained(tmp_path / "first", "env=catch", "entropy_coefficient=0.123456789")
    monkeypatch.chdir(tmp_path)
    assert main(["train", f"config={run_dir}/config.yaml", "seed=2"]) == 0
    (again,) = (tmp_path / "runs").iterdir()
    first = dataclasses.replace(read_config(run_dir), seed=2, run_dir=None)
    assert read_config(again) == first


@pytest.mark.parametrize(
    ("arguments", "learners"), [([], 4), (["learners=3"], 3)], ids=["file's", "command line's"]
)
def test_learners_of_a_file_give_way_to_those_that_torchrun_has_started(
    arguments: list[str], learners: int, tmp_path, monkeypatch, capsys
) -> None:
    def refuse(config: TrainConfig, ranks: object) -> None:
        raise ValueError(f"{config.num_learners} learners")

    for name, value in zip(("RANK", "LOCAL_RANK"), "00", strict=True):
        monkeypatch.setenv(name, value)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "4")
    monkeypatch.setattr("accel_rl.cli.run.end_with_parent", lambda: None)
    monkeypatch.setattr("accel_rl.cli.run.meet_by_store", lambda ranks, _: Team(ranks))
    monkeypatch.setattr("accel_rl.cli.run.check_learners", refuse)
    assert main(["train", written(tmp_path, "env: catch\nlearners: 2"), *arguments]) == 1
    assert capsys.readouterr().err == f"error: {learners} learners\n"


def test_options_in_a_file_are_those_of_all_runs_of_a_sweep(tmp_path) -> None:
    file = written(tmp_path, "algo: a2c\nenv: catch\nlr: 1e-3\nseed: 7\n")
    options, axes = read_options([file, "algo=a2c,ppo", "seed=0..1"])
    runs = plan_runs(axes, options.config)
    assert [run.name for run in runs] == [
        "catch-a2c-0",
        "catch-a2c-1",
        "catch-ppo-0",
        "catch-ppo-1",
    ]
    assert runs[3].config == parse_arguments(["algo=ppo", "env=catch", "lr=1e-3", "seed=1"])


SWEEPS = """
seeed: 1 & seed=0 | run seed=0: FILE: unknown option seeed
seed: 1 | a sweep needs lists of options
seed: 1 & resume=x | FILE cannot be given with resume=x
"""


@pytest.mark.parametrize(("given", "said"), rows(SWEEPS))
def test_file_that_a_sweep_cannot_have_is_refused(
    given: str, said: str, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, _, arguments = given.partition(" & ")
    argument = written(tmp_path, text)
    assert main(["sweep", argument, *arguments.split()]) == 1
    assert re.match(words("error: " + said.replace("FILE", argument)), capsys.readouterr().err)


def test_parts_of_a_sweep_share_the_copy_of_the_file(tmp_path) -> None:
    folder = tmp_path / "sweep"
    written(tmp_path, "env: catch\n")
    options = SweepOptions(part="2/2", sweep_dir=str(folder), config=str(tmp_path / "my.yaml"))
    runs = plan_runs({"seed": "0,1"}, options.config)
    folder.mkdir()
    (folder / "config.yaml").write_text("env: catch\n")  # another part has come as far as this
    assert make_directory(options, runs) == make_directory(options, runs) == folder
    written(tmp_path, "env: CartPole-v1\n")
    with pytest.raises(ValueError, match="is not empty; choose another"):
        make_directory(options, plan_runs({"seed": "0,1"}, options.config))


def test_sweep_whose_file_is_not_as_it_was_does_not_go_on(tmp_path) -> None:
    written(tmp_path, "env: catch\n")
    options = SweepOptions(sweep_dir=f"{tmp_path}/sweep", config=str(tmp_path / "my.yaml"))
    runs = plan_runs({"seed": "0,1"}, options.config)
    copy = make_directory(options, runs) / "config.yaml"
    assert read_plan(copy.parent) == runs
    for change in (lambda: copy.write_text("env: catch\nlr: 0.1\n"), copy.unlink):
        change()
        with pytest.raises(ValueError, match=words(f"{copy} options of all runs, is not as it")):
            read_plan(copy.parent)


def test_home_directory_may_be_a_tilde_also_where_the_shell_leaves_it(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    written(tmp_path, "env: catch\n")
    config = parse_arguments(["config=~/my.yaml", "run_dir=~/runs/1"])
    assert (config.env, config.run_dir) == ("catch", f"{tmp_path}/runs/1")
