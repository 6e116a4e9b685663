"""Trackers: all rows arrive, and no failure of a tracker reaches the run."""

from __future__ import annotations

import json
import math
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image
from saved_runs import quiet, trained

from accel_rl import trackers
from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.tables import read_rows, tag
from accel_rl.runs.yaml_file import code_in
from accel_rl.tools.play import PlayOptions, play
from accel_rl.trackers import Trackers, check_trackers

CONFIG = {"env": "catch", "learner": {"lr": 0.1}}


def calls(run_dir: Path) -> list[list[object]]:
    return [json.loads(line) for line in (run_dir / "tracked.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.processes
def test_run_sends_its_rows_and_its_curve_and_writes_no_events(tmp_path) -> None:
    options = ("total_steps=2000", "log_interval=500", "tracker=own_trackers:Keeper")
    run_dir = trained(tmp_path / "run", "env=catch", *options)
    first, *rows, curve, last = calls(run_dir)
    assert first == ["start", "catch", None]
    written = read_rows(run_dir / "metrics.csv")
    assert [row[1] for row in rows] == [row["steps"] for row in written]
    values = rows[-1][2]
    assert values["run/updates"] == written[-1]["updates"]
    numbers = {tag(name) for name, v in written[-1].items() if not math.isnan(v)} - {"run/steps"}
    assert set(values) | {tag("steps")} == numbers | {tag("steps")}
    assert (curve, last) == (["file", "learning_curve.png"], ["close"])
    play(run_dir, PlayOptions(max_steps=10), quiet())
    assert calls(run_dir)[-2] == ["file", "game.mp4"]
    assert list(run_dir.glob("events.*")) == []


@pytest.mark.parametrize("when", ["make", "log", "close"])
def test_tracker_that_fails_is_told_of_once_and_the_others_go_on(tmp_path, when: str) -> None:
    said: list[str] = []
    names = [f"own_trackers:fails_in_{when}", "own_trackers:Keeper"]
    own = Trackers(names, tmp_path, CONFIG, said.append)
    for steps in range(5):
        own.log({"learner/loss": 1.0, "learner/other": math.nan}, steps)
    own.close()
    own.close()
    assert said == [
        f"tracker {names[0]} has failed and gets no more rows: ConnectionError: the server is gone"
    ]
    assert calls(tmp_path)[1:] == [
        *(["row", n, {"learner/loss": 1.0}] for n in range(5)),
        ["close"],
    ]


def test_run_of_a_sweep_is_in_its_group(tmp_path) -> None:
    run_dir = tmp_path / "my_sweep" / "runs" / "seed=1"
    run_dir.mkdir(parents=True)
    (tmp_path / "my_sweep" / "sweep.yaml").touch()
    Trackers(["own_trackers:Keeper"], run_dir, CONFIG, pytest.fail)
    assert calls(run_dir)[0] == ["start", "catch", "my_sweep"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("wandbb", "wandbb is unknown; use tensorboard, wandb, mlflow or module:function"),
        ("wandb,wandb", "wandb is there twice"),
    ],
)
def test_bad_names_are_refused(value: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_arguments([f"tracker={value}"])


def test_missing_package_is_refused_before_the_run(monkeypatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'tracker=wandb needs wandb: pip install "accel_rl'):
        check_trackers(["wandb"], installed=True)
    with pytest.raises(ValueError, match="tracker=no_such_module:make"):
        check_trackers(["no_such_module:make"], installed=True)


def test_function_of_a_tracker_counts_as_code_that_a_file_names() -> None:
    config = parse_arguments(["tracker=tensorboard,mine:make"])
    assert code_in(vars(config)) == {"tracker": "tensorboard,mine:make"}


REAL = {
    "wandb": ({"WANDB_MODE": "offline"}, "wandb_id.txt", "wandb/offline-run-*/*.wandb"),
    "mlflow": ({}, "mlflow_run_id.txt", "../mlflow.db"),
}


@pytest.mark.processes
@pytest.mark.parametrize("name", list(REAL))
def test_real_tracker_takes_rows_files_and_a_second_part_offline(
    monkeypatch, tmp_path, name: str
) -> None:
    if find_spec(name) is None:
        pytest.skip(f'{name} is not installed: pip install "accel_rl[{name}]"')
    variables, id_file, data = REAL[name]
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    variables |= {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8)).save(run_dir / "learning_curve.png")
    ids = []
    for steps in (10, 20):
        own = Trackers([name], run_dir, CONFIG, pytest.fail)
        own.log({"learner/a_metric": 0.5}, steps)
        own.send_files([run_dir / "learning_curve.png", run_dir / "missing.png"])
        own.close()
        ids.append((run_dir / id_file).read_text())
    if name == "wandb":
        import_module("wandb").teardown()  # its process, which otherwise ends with this one
    assert ids[0] == ids[1]
    assert any(b"a_metric" in path.read_bytes() for path in run_dir.glob(data))
