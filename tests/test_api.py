"""The front door for programs: `accel_rl.train` and others."""

import ast
import functools
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from option_keywords import PATH, make_keywords

import accel_rl
from accel_rl.api import Run
from accel_rl.cli.parse import make_config
from accel_rl.envs.catch import Catch
from accel_rl.envs.make import GIVEN, name_for_configs
from accel_rl.runs.tables import read_rows

QUICK: dict[str, Any] = {"num_workers": 0, "tracker": [], "quiet": True}


def make_catch() -> Catch:
    return Catch()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of Catch, with an environment that only this process knows."""
    path = tmp_path_factory.mktemp("api") / "run"
    return accel_rl.train(env=lambda: Catch(), total_steps=800, run_dir=path, **QUICK)


def test_import_loads_no_package_and_samplers_load_no_torch() -> None:
    code = (
        "import sys, accel_rl\n"
        "loaded = {'torch', 'numpy', 'gymnasium', 'rich'} & sys.modules.keys()\n"
        "assert not loaded and len([n for n in sys.modules if n[:9] == 'accel_rl.']) < 4\n"
        "accel_rl.ParallelSampler, accel_rl.SerialSampler, accel_rl.VectorEnv\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_package_is_named_with_its_extra() -> None:
    code = (
        "import sys, accel_rl\nsys.modules['torch'] = None\n"
        "try:\n    accel_rl.train\nexcept ModuleNotFoundError as error:\n    print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'pip install "accel_rl[train]"' in found.stdout


def test_keywords_are_those_of_the_presets() -> None:
    written, made = ast.parse(PATH.read_text()), ast.parse(make_keywords())
    assert ast.dump(written) == ast.dump(made), "python tests/helpers/options_index.py"


def test_unknown_keyword_is_answered_as_on_the_command_line() -> None:
    with pytest.raises(ValueError, match=r"unknown option learning_rate; did you mean lr\?"):
        accel_rl.train(env="catch", learning_rate=1e-3)  # type: ignore[call-arg]


def test_run_plays_plots_films_and_shows_itself(run: Run, tmp_path: Path) -> None:
    report = run.evaluate(episodes=3, quiet=True)
    assert report.num_games >= 3 and report.mean is not None
    assert run.plot("entropy").path.read_bytes()[:4] == b"\x89PNG"
    film = run.film(tmp_path / "game.gif", quiet=True, max_steps=20)
    assert film.score in (-1.0, 1.0) and "data:image/gif;base64" in film._repr_html_()
    assert (
        -1.0 <= run.score <= 1.0 and repr(run) == f"Run({str(run.path)!r}, score={run.score:.4g})"
    )
    assert "data:image/png;base64" in run._repr_html_()


def test_run_of_somebody_else_plots_and_acts_once_it_is_trusted(run: Run, tmp_path: Path) -> None:
    theirs = tmp_path / "run"
    shutil.copytree(run.path, theirs)
    text = (theirs / "config.yaml").read_text()
    (theirs / "config.yaml").write_text(text.replace(run.config.env, f"{__name__}:make_catch"))
    with pytest.raises(ValueError, match="trust=true"):
        Run(theirs).load()
    trusted = Run(theirs, trust=True)
    assert trusted.plot().path.exists() and trusted.load()(np.zeros((10, 5))) in (0, 1, 2)


def test_home_directory_may_be_written_as_in_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert make_config({"run_dir": "~/run"}).run_dir == "/home/me/run"


def test_policy_takes_one_observation_or_several(run: Run) -> None:
    policy = accel_rl.load(run, greedy=True)
    observation = np.zeros((10, 5))
    action = policy(observation)
    assert np.shape(action) == () and policy([observation.tolist()] * 2).tolist() == [action] * 2
    assert policy(torch.zeros(2, 10, 5)).tolist() == [action] * 2


def test_run_goes_on_in_its_directory(tmp_path: Path) -> None:
    run = accel_rl.train(env=lambda: Catch(), total_steps=80, run_dir=tmp_path / "run", **QUICK)
    longer = run.resume(total_steps=160, quiet=True)
    assert longer.path == run.path and longer.config.total_steps == 160


def test_environment_that_only_a_program_knows_must_be_given_again(run: Run) -> None:
    assert not GIVEN
    with pytest.raises(ValueError, match=r"give it again, as in accel_rl\.load\(RUN, env=FUNCTION"):
        accel_rl.load(run.path)
    again = accel_rl.evaluate(run.path, episodes=1, env=lambda: Catch(), quiet=True)
    assert again.num_games


@pytest.mark.parametrize(
    ("env", "name"),
    [
        (Catch, "accel_rl.envs.catch:Catch"),
        (make_catch, "test_api:make_catch"),
        (functools.partial(Catch), "__main__:<Catch>"),
        (lambda: Catch(), "test_api:<lambda>"),
    ],
    ids=["class", "function", "partial", "lambda"],
)
def test_environment_has_the_name_under_which_others_import_it(env: Any, name: str) -> None:
    assert name_for_configs(env) == name


def test_rows_are_seen_and_end_the_run(tmp_path: Path) -> None:
    steps = []

    def watch(row: Mapping[str, float]) -> bool:
        steps.append(row["steps"])
        return row["steps"] >= 160

    options: dict[str, Any] = {**QUICK, "log_interval": np.int64(80), "lr": np.float32(0.5)}
    run = accel_rl.train(env="catch", on_row=watch, run_dir=tmp_path / "run", **options)
    assert steps == [80, 160]
    assert run.config.learner.lr == 0.5  # type: ignore[attr-defined]


def test_run_stops_at_a_score(tmp_path: Path) -> None:
    options: dict[str, Any] = {**QUICK, "log_interval": 80, "run_dir": tmp_path / "run"}
    accel_rl.train(env="catch", total_steps=8000, stop_at_score=-1.5, **options)
    rows = read_rows(tmp_path / "run" / "metrics.csv")
    assert rows[-2]["episodes_in_window"] < 20 <= rows[-1]["episodes_in_window"]


@pytest.mark.processes
@pytest.mark.slow
def test_two_learners_have_the_functions_of_the_program(tmp_path: Path) -> None:
    code = (
        "import accel_rl\n"
        "from accel_rl.envs.catch import Catch\n"
        "make = lambda: Catch()\n"
        "run = accel_rl.train(env=make, learners=2, num_workers=0, total_steps=80_000,\n"
        "    log_interval=160, quiet=True, on_row=lambda row: print(row['steps']) or True)\n"
        "print(run.config.learners, run.evaluate(1, quiet=True).num_games > 0)\n"
    )
    (tmp_path / "program.py").write_text(code)
    command = [sys.executable, "program.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[-2] == "2 True" and found.stdout.startswith("160")


def test_function_that_no_process_can_be_given_is_refused(tmp_path: Path) -> None:
    lock = __import__("threading").Lock()
    with pytest.raises(ValueError, match="cannot be carried to the processes of several learners"):
        accel_rl.train(
            env="catch", learners=2, run_dir=tmp_path, on_row=lambda row: lock, quiet=True
        )


@pytest.mark.processes
@pytest.mark.slow
def test_sweep_returns_a_row_of_each_run(tmp_path: Path) -> None:
    swept = accel_rl.sweep(
        env=Catch, seed=range(2), total_steps=800, sweep_dir=tmp_path / "sweep", **QUICK
    )
    assert [(row["seed"], row["state"]) for row in swept.rows] == [(0, "finished"), (1, "finished")]
    assert all(-1 <= row["score"] <= 1 for row in swept.rows) and swept.path == tmp_path / "sweep"


def test_sweep_refuses_an_environment_that_others_cannot_import() -> None:
    with pytest.raises(ValueError, match="put the function into a module"):
        accel_rl.sweep(env=lambda: Catch(), seed=range(2))
