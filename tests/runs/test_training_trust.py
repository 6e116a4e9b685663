"""Files of somebody else's: nothing of them runs, is resolved, or is restored without a word."""

import io
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from rich.console import Console
from saved_runs import SMALL, trained
from tiers import in_tiers

from accel_rl.__main__ import main
from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.checkpoint import list_checkpoints
from accel_rl.runs.directory import log_to
from accel_rl.runs.saved import read_config
from accel_rl.runs.yaml_file import is_own, read_yaml, write_yaml
from accel_rl.sweeps.command import make_directory
from accel_rl.sweeps.plan import SweepOptions, plan_runs
from accel_rl.sweeps.queue import arguments_of, make_jobs
from accel_rl.system.console import printable
from accel_rl.system.functions import import_module
from accel_rl.system.lasting_console import LastingConsole
from accel_rl.system.signing import UntrustedError
from accel_rl.tools.policy import load_policy
from accel_rl.training.train import train

MINE = "from accel_rl.envs.catch import Catch\nopen('imported', 'w').close()\n"


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The current directory, with a module ``mine`` in it that leaves a trace when imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(MINE)
    yield tmp_path
    sys.modules.pop("mine", None)


def forget(folder: Path) -> None:
    """The module was not imported yet, as for a program that starts."""
    sys.modules.pop("mine", None)
    (folder / "imported").unlink(missing_ok=True)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def foreign_run(folder: Path) -> Path:
    run_dir = trained(folder / "run", "env=catch")
    edit(run_dir / "config.yaml", "env: catch", "env: mine:Catch")
    return run_dir


COMMANDS = {
    "evaluate": ["evaluate", "run", "num_steps=20", "num_envs=2", "num_workers=0"],
    "play": ["play", "run", "max_steps=5", "out=game.gif"],
    "package": ["package", "run"],
    "resume": ["train", "resume=run", "total_steps=80"],
    "config": ["train", "config=run/config.yaml", "run_dir=new"],
    "plan": ["train", "--plan", "config=run/config.yaml"],
    "plan-resume": ["train", "--plan", "resume=run", "total_steps=80"],
    "learners": ["train", "resume=run", "total_steps=80", "learners=2"],
    "sweep-config": ["sweep", "config=run/config.yaml", "seed=0", "sweep_dir=swept"],
}


@pytest.mark.parametrize("command", in_tiers(COMMANDS, "evaluate resume", " ".join(COMMANDS)))
def test_code_in_a_run_of_somebody_else_is_refused_and_not_imported(command, here, capsys) -> None:
    foreign_run(here)
    before = sorted(here.rglob("*"))
    assert main(COMMANDS[command]) == 1
    said = capsys.readouterr().err
    assert "run/config.yaml names code to run, env=mine:Catch" in said
    command_line = " ".join(["python -P -m accel_rl", *COMMANDS[command], "trust=true"])
    assert said.splitlines()[-1] == command_line
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    "command", in_tiers(["evaluate", "play", "resume", "config"], "evaluate", "play resume config")
)
def test_code_in_a_run_of_somebody_else_runs_with_trust(command, here) -> None:
    foreign_run(here)
    assert main([*COMMANDS[command], "trust=true"]) == 0
    assert (here / "imported").exists()
    assert sys.path[-1] == str(here)


@pytest.mark.parametrize("value", ["mine:Catch-v0", "mine:Catch"])
def test_module_of_a_gymnasium_id_is_code_like_a_function(value: str, here) -> None:
    run_dir = trained(here / "run", "env=catch")
    edit(run_dir / "config.yaml", "env: catch", f"env: {value}")
    with pytest.raises(UntrustedError, match=value):
        parse_arguments([f"resume={run_dir}"])


@pytest.mark.parametrize("options", [{}, {"trust": True}])
def test_policy_of_a_run_that_names_a_network_is_loaded_with_trust_alone(options, here) -> None:
    run_dir = trained(here / "run", "env=catch")
    edit(run_dir / "config.yaml", "model: auto", "model: mine:make")
    with pytest.raises(ValueError, match="trust=true" if not options else "has no function make"):
        load_policy(run_dir, **options)
    assert (here / "imported").exists() == bool(options)


@pytest.mark.slow
def test_own_run_needs_no_trust_wherever_it_is_copied(here) -> None:
    trained(here / "own", "env=mine:Catch")
    shutil.copytree("own", "run")
    for command in ("evaluate", "play", "resume", "config"):
        forget(here)
        assert main(COMMANDS[command]) == 0
    load_policy("new")


@pytest.mark.parametrize("change", ["edited", "appended", "another key", "no key"])
def test_signature_holds_for_the_same_bytes_and_key_alone(change, tmp_path, monkeypatch) -> None:
    path = tmp_path / "config.yaml"
    write_yaml(path, OmegaConf.create({"env": "mine:Catch"}))
    assert is_own(path)
    assert read_yaml(path, trust=False) == {"env": "mine:Catch"}
    if change == "edited":
        edit(path, "mine", "evil")
    elif change == "appended":
        path.write_text(path.read_text() + "model: evil:make\n")
    else:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
        if change == "no key":
            (tmp_path / "other").touch()
    assert not is_own(path)
    with pytest.raises(UntrustedError):
        read_yaml(path, trust=False)


def test_run_without_a_state_folder_is_unsigned_and_says_so_once(here, monkeypatch) -> None:
    (here / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "file"))
    console = Console(file=io.StringIO(), width=1_000)
    options = ["env=mine:Catch", "total_steps=40", *SMALL, "run_dir=run"]
    train(parse_arguments(options), console)
    assert console.file.getvalue().count("not signed") == 1
    assert "chmod 600" in console.file.getvalue()  # the key that is there may be to blame
    with pytest.raises(UntrustedError):
        load_policy("run")


@pytest.mark.slow
def test_runs_that_name_no_code_need_no_signature(here, monkeypatch) -> None:
    trained(here / "run", "env=catch")
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "another user"))
    for command in ("evaluate", "play", "config"):
        assert main(COMMANDS[command]) == 0
    load_policy("run")


def test_plot_neither_imports_nor_refuses(here) -> None:
    foreign_run(here)
    assert main(["plot", "run"]) == 0
    assert not (here / "imported").exists()


def test_files_cannot_vouch_for_themselves(here) -> None:
    run_dir = foreign_run(here)
    edit(run_dir / "config.yaml", "trust: false", "trust: true")
    assert not read_config(run_dir).trust
    with pytest.raises(UntrustedError):
        parse_arguments([f"resume={run_dir}"])
    with pytest.raises(UntrustedError):
        parse_arguments([f"config={run_dir}/config.yaml"])


@pytest.mark.parametrize("command", [["train", "env=catch"], ["sweep", "env=catch", "seed=0"]])
def test_trust_without_a_file_is_refused(command, capsys) -> None:
    assert main([*command, "trust=true"]) == 1
    assert "trust=true has no effect without resume or config" in capsys.readouterr().err


def make_sweep(here: Path) -> None:
    (here / "all.yaml").write_text("sampler: {num_envs: 2, num_workers: 0}\n")
    runs = plan_runs({"env": "mine:Catch", "seed": "0", "total_steps": "40"}, "all.yaml")
    make_directory(SweepOptions(sweep_dir="swept", config="all.yaml"), runs)


@pytest.mark.slow
@pytest.mark.processes
def test_own_sweep_with_code_goes_on_without_trust(here) -> None:
    make_sweep(here)
    assert main(["sweep", "resume=swept"]) == 0
    assert len(list_checkpoints(here / "swept" / "runs" / "mine-Catch-a2c-0")) == 1


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("options", [[], ["trust=true"]])
def test_sweep_of_somebody_else_goes_on_as_the_command_line_says(
    options, here, monkeypatch, capsys
) -> None:
    make_sweep(here)
    (here / "imported").unlink()  # to know the kind of its observations
    monkeypatch.delitem(sys.modules, "mine")
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "another user"))
    assert main(["sweep", "resume=swept", "total_steps=80", *options]) == int(not options)
    assert (here / "imported").exists() == bool(options)
    if not options:
        said = capsys.readouterr().err
        assert "swept/sweep.yaml names code to run, env=mine:Catch" in said
        assert "\npython -P -m accel_rl sweep resume=swept total_steps=80 trust=true\n" in said


@pytest.mark.parametrize("model", ["mine:make", "auto"])
def test_runs_of_a_sweep_trust_its_options_where_those_name_code(model: str, here) -> None:
    (here / "config.yaml").write_text(f"model: {model}\n")
    runs = plan_runs({"env": "catch", "seed": "0"}, "config.yaml", trust=True)
    (job,) = make_jobs(runs, here, here)
    assert ("trust=true" in arguments_of(job)) == (model != "auto")


@pytest.mark.parametrize("name", ["config.yaml", "sweep.yaml", "all.yaml"])
def test_values_from_the_environment_are_refused_and_shown_to_nobody(
    name: str, here, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    (here / "run").mkdir()
    secret = "${oc.env:TOKEN}"
    texts = {
        "config.yaml": f"algo: a2c\nenv: catch\nrun_dir: {secret}\n",
        "sweep.yaml": f"options:\n  env: ['{secret}']\nruns: []\n",
        "all.yaml": f"algo: {secret}\n",
    }
    for path, text in texts.items():
        (here / "run" / path).write_text(text)
    commands = {"config.yaml": ["evaluate", "run"], "sweep.yaml": ["sweep", "resume=run"]}
    assert main(commands.get(name, ["train", "config=run/all.yaml"])) == 1
    said = capsys.readouterr().err
    assert "${oc.env:TOKEN}" in said and "hunter2" not in said
    assert (here / "run" / name).read_text() == texts[name]


def test_log_of_a_run_holds_no_escape_sequences(tmp_path) -> None:
    with log_to(tmp_path / "train.log"):
        logging.getLogger("accel_rl").info("\x1b]0;title\a\nnext")
    assert r"\x1b]0;title\x07" in (tmp_path / "train.log").read_text()


def test_console_prints_names_plainly_and_keeps_its_own_colours() -> None:
    console = LastingConsole(
        file=io.StringIO(), force_terminal=True, color_system="standard", highlight=False
    )
    console.print("[red]\x1b[2Jgone\u202e[/red]\tx\ny")
    said = console.file.getvalue()
    assert "\x1b[31m\\x1b[2Jgone\\u202e\x1b[0m" in said
    assert said.endswith("\ny\n")


def test_printable_leaves_text_of_all_languages_as_it_is() -> None:
    text = "Größe 学習 🎮\n\tnext"
    assert printable(text) == text
    assert printable("\r\x00\x9b\x7f\u2066") == r"\r\x00\x9b\x7f\u2066"


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["trust=true"]])
def test_simulators_of_somebody_else_start_new_episodes_unless_trusted(
    options, here, monkeypatch
) -> None:
    trained(here / "run", "env=catch")
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "another user"))
    console = Console(file=io.StringIO(), width=1_000)
    train(parse_arguments(["resume=run", "total_steps=80", *options]), console)
    said = console.file.getvalue()
    assert ("start new episodes" in said) == ("trust=true restores" in said) == (not options)


@pytest.mark.slow
@pytest.mark.processes
def test_current_directory_is_searched_last_and_for_code_alone(here) -> None:
    """A module there must not take the place of an installed one."""
    (here / "winreg.py").write_text("open('imported', 'w').close()\n")
    (here / "omegaconf.py").write_text("open('imported', 'w').close()\n")
    script = Path(__file__).parents[2] / "launch" / "train.py"
    options = ["env=catch", "total_steps=40", *SMALL, "run_dir=run"]
    environment = os.environ | {"PYTHONPATH": str(script.parents[1])}
    subprocess.run(
        [sys.executable, script, *options], check=True, env=environment, stdout=subprocess.DEVNULL
    )
    assert not (here / "imported").exists()
    import_module("mine", "env", "mine:Catch")
    assert sys.path[-1] == str(here)
