"""Faults of the machine: what was good before is there to the byte, and the message has the file.

Full disks are a limit to the size of files here, which fails as they do, in the middle of a file.
"""

import contextlib
import io
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from rich.console import Console
from saved_runs import SMALL, trained, undrawn

from accel_rl.__main__ import main
from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from accel_rl.runs.figures import draw_learning_curve
from accel_rl.runs.files import WriteError, explain
from accel_rl.runs.tables import CsvTable, EventsWriter, read_rows
from accel_rl.runs.yaml_file import write_yaml
from accel_rl.training.train import train

ROW = {"steps": 10.0, "episode_return_raw_mean": 1.0}
CURVE = [{**ROW, "episode_return_raw_p10": 0.0, "episode_return_raw_p90": 2.0}] * 3


@contextlib.contextmanager
def full_at(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Also for root, where mounts are allowed; the mode of the folder stops everybody else."""
    if os.getuid() == 0:
        if subprocess.run(["mount", "--bind", folder, folder], capture_output=True).returncode:
            pytest.skip("this root may not mount")
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", folder], check=True)
    else:
        folder.chmod(0o555)
        try:
            yield
        finally:
            folder.chmod(0o755)


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in sorted(folder.rglob("*"))
        if each.is_file()
    }


def save(folder: Path, number: int) -> None:
    state = {"counts": {"steps": number}, "weight": torch.full((3_000,), float(number))}
    save_checkpoint(folder, number, state)


WRITERS: dict[str, tuple[str, Callable[[Path, int], object]]] = {
    "checkpoint": ("checkpoints/steps_000000000002.pt", save),
    "curve": (
        "curve.png",
        lambda folder, n: draw_learning_curve(folder / "curve.png", CURVE * n, "a2c", "pong", ""),
    ),
    "config": (
        "config.yaml",
        lambda folder, n: write_yaml(folder / "config.yaml", OmegaConf.create({"a": "b" * 500})),
    ),
}


@pytest.mark.parametrize(
    ("what", "size"),
    [
        *(("checkpoint", 100), ("config", 0)),
        *(pytest.param("curve", size, marks=pytest.mark.slow) for size in (1, 400)),
    ],
)
def test_full_disk_leaves_the_file_before_and_names_itself(what: str, size: int, tmp_path) -> None:
    name, write = WRITERS[what]
    write(tmp_path, 1)
    before = content(tmp_path)
    with full_at(size), pytest.raises(WriteError) as caught:
        write(tmp_path, 2)
    assert content(tmp_path) == before
    told = explain(caught.value, "choose another place")
    assert told.startswith(f"cannot write {tmp_path / name}: File too large; ")
    write(tmp_path, 2)  # with room again


def test_full_disk_ends_the_run_with_one_message_and_no_half_checkpoint(tmp_path, capsys) -> None:
    with full_at(10_000), undrawn():
        assert main(["train", "env=catch", *SMALL, "total_steps=40", f"run_dir={tmp_path}"]) == 1
    checkpoint = tmp_path / "checkpoints" / "steps_000000000040.pt"
    said = capsys.readouterr().err
    assert said.startswith(f"error: cannot write {checkpoint}: File too large; change that, or")
    assert said.count("error:") == 1 and "Traceback" not in said
    assert list(checkpoint.parent.iterdir()) == []
    assert read_rows(tmp_path / "metrics.csv")[-1]["steps"] == 40


@pytest.mark.parametrize("missing", [1, 9])
def test_full_disk_leaves_the_rows_before_in_a_table(missing: int, tmp_path) -> None:
    path = tmp_path / "metrics.csv"
    table = CsvTable(path, 0)
    table.write(ROW)
    before, size = path.read_bytes(), path.stat().st_size
    for _ in range(2):
        with full_at(size + missing), pytest.raises(WriteError) as caught:
            table.write({**ROW, "steps": 123_456_789.0})
        assert path.read_bytes() == before and caught.value.filename == str(path)
    table.write({**ROW, "steps": 20.0})
    assert [row["steps"] for row in read_rows(path)] == [10, 20]


def test_full_disk_leaves_the_events_before_and_names_their_file(tmp_path) -> None:
    writer = EventsWriter(tmp_path, 0)
    writer.write(ROW, 10)
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    with full_at(len(before) + 5), pytest.raises(WriteError, match="File too large") as caught:
        writer.write(ROW, 20)
        writer.write(ROW, 30)
    writer.close()
    assert path.read_bytes()[: len(before)] == before
    assert caught.value.filename == str(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    return trained(run_dir, "env=catch", "algo=a2c", "horizon=5", "checkpoint_interval=20")


@pytest.fixture
def run_dir(whole: Path, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_full_disk_leaves_the_film_before(suffix: str, run_dir: Path, capsys) -> None:
    film = run_dir.parent / f"film.{suffix}"
    film.write_bytes(b"before")
    with full_at(200):
        assert main(["play", "run", "max_steps=20", f"out={film}", "overwrite=true"]) == 1
    way_out = {"gif": "choose another place by out=PATH", "mp4": "Set TMPDIR to another"}
    said = capsys.readouterr().err
    assert said.startswith("error: ") and way_out[suffix] in said
    assert film.read_bytes() == b"before"


COMMANDS = {
    "resume": (
        ["train", "resume=run", "total_steps=80"],
        "cannot write .*run/.*; change that, or resume a c",
    ),
    "evaluate": (
        ["evaluate", "run", "num_steps=20", "num_envs=2", "num_workers=0"],
        "out=run/evaluation.json: run may not be written to; choose another",
    ),
    "play": (["play", "run", "max_steps=20"], "run may not be written to; choose another"),
}


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("command", COMMANDS)
def test_read_only_run_stays_as_it_was_and_the_message_says_so(
    command: str, run_dir: Path, capsys
) -> None:
    arguments, told = COMMANDS[command]
    before = content(run_dir)
    with read_only(run_dir):
        assert main(arguments) == 1
    assert re.search(told, capsys.readouterr().err)
    assert content(run_dir) == before


def test_clock_that_is_set_back_loses_nothing(run_dir: Path, monkeypatch) -> None:
    """Files of events are read in the order of their names, which the time makes."""
    events = {path.name for path in run_dir.glob("events*")}
    rows = len(read_rows(run_dir / "metrics.csv"))
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)
    train(parse_arguments(["resume=run", "total_steps=80"]), Console(file=io.StringIO()))
    assert events < {path.name for path in run_dir.glob("events*")}
    assert len(read_rows(run_dir / "metrics.csv")) > rows
    assert load_checkpoint(list_checkpoints(run_dir)[-1])["counts"]["steps"] == 80


LIMITS = {
    "64 open files": "ulimit -n 64",
    "1.5 GB of addresses": "ulimit -v 1500000",
    "24 open files": "ulimit -n 24",
}


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.parametrize("limit", LIMITS)
def test_program_under_a_limit_trains_or_says_which(limit: str, tmp_path) -> None:
    options = "env=catch num_envs=4 num_workers=2 horizon=5 total_steps=200 run_dir=run"
    command = f"{LIMITS[limit]}; exec {sys.executable} -m accel_rl train {options}"
    ended = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    if ended.returncode:
        assert ended.stderr.startswith("error: ") and "ulimit" in ended.stderr
        assert "Traceback" not in ended.stderr
    else:
        assert len(list_checkpoints(tmp_path / "run")) == 1
