"""What a run writes: whole files, checkpoints, its directory, its log."""

import errno
import logging
import os
import re
import shutil
import tracemalloc
from datetime import datetime
from pathlib import Path

import pytest
import torch
from saved_runs import quiet, trained

from accel_rl.__main__ import main
from accel_rl.cli.parse import parse_arguments
from accel_rl.config import TrainConfig
from accel_rl.runs import checkpoint
from accel_rl.runs.checkpoint import (
    list_checkpoints,
    load_checkpoint,
    part_path,
    save_checkpoint,
    save_part,
)
from accel_rl.runs.directory import log_to, make_run_directory, run_place
from accel_rl.runs.files import WriteError, delete_unfinished, write_whole
from accel_rl.runs.tables import EventsWriter
from accel_rl.training.train import train

NOW = datetime(2026, 3, 4, 5, 6, 7)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fail_with(code: int):
    def fail(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_write_whole_replaces_the_file_and_leaves_nothing_else(tmp_path) -> None:
    path = tmp_path / "curve.png"
    write_whole(path, b"first")
    write_whole(path, b"second", durable=True)
    assert path.read_bytes() == b"second"
    assert names(tmp_path) == ["curve.png"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_write_whole_that_fails_in_the_middle_leaves_the_old_file(
    function: str, tmp_path, monkeypatch
) -> None:
    path = tmp_path / "curve.png"
    write_whole(path, b"old")
    monkeypatch.setattr(f"os.{function}", fail_with(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_whole(path, b"new", durable=True)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["curve.png"]


def test_sweep_that_cannot_write_its_plan_says_so(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pathlib.Path.replace", fail_with(errno.ENOSPC))
    assert main(["sweep", "algo=a2c", "env=catch", "sweep_dir=out"]) == 1
    assert re.match(r"error: cannot write out\b.*sweep_dir\n$", capsys.readouterr().err)


def state_of(number: int) -> dict:
    return {
        "counts": {"steps": number},
        "parameters": {"weight": torch.full((3, 2), float(number))},
    }


def test_checkpoint_read_back_has_the_same_tensors_and_counts_and_is_no_pickle(tmp_path) -> None:
    path = save_checkpoint(tmp_path, 1_000_000, state_of(7))
    assert path == tmp_path / "checkpoints" / "steps_000001000000.pt"
    for loaded in (load_checkpoint(path), torch.load(path, weights_only=True)):
        assert loaded["counts"] == {"steps": 7}
        torch.testing.assert_close(loaded["parameters"]["weight"], torch.full((3, 2), 7.0))


def test_only_the_last_checkpoints_are_kept(tmp_path) -> None:
    for steps in (5, 90, 1_000, 20_000, 300_000):
        save_checkpoint(tmp_path, steps, state_of(steps))
    kept = [load_checkpoint(path)["counts"]["steps"] for path in list_checkpoints(tmp_path)]
    assert kept == [1_000, 20_000, 300_000]


def test_parts_are_deleted_once_no_checkpoint_that_is_kept_needs_them(
    tmp_path, monkeypatch
) -> None:
    """Of two learners until step 200, and of one from there on."""
    monkeypatch.setattr(checkpoint, "NUM_KEPT", 2)

    def parts() -> list[str]:
        return [name for name in names(tmp_path / "checkpoints") if name.startswith("part")]

    for steps in (100, 200):
        save_part(tmp_path, steps - 10, 1, {})  # in a store they lag
        save_checkpoint(tmp_path, steps, {"parts": {1: steps - 10}})
    both = [f"part_{steps:012d}_learner_1.pt" for steps in (90, 190)]
    assert parts() == both
    save_checkpoint(tmp_path, 300, {"parts": {}})
    assert parts() == both[1:]
    save_checkpoint(tmp_path, 400, {"parts": None})
    assert parts() == []


def test_parts_that_checkpoints_name_stay_while_the_first_learner_saves_none(tmp_path) -> None:
    """It may evaluate for long, and the run may be killed meanwhile."""
    for steps in (100, 200):
        save_part(tmp_path, steps, 1, {})
        save_checkpoint(tmp_path, steps, {"parts": {1: steps}})
    for steps in range(300, 900, 100):
        save_part(tmp_path, steps, 1, {})
    kept = [path.name for path in sorted((tmp_path / "checkpoints").glob("part_*"))]
    assert kept == [part_path(tmp_path, steps, 1).name for steps in (100, 200, 500, 600, 700, 800)]


def test_parts_stay_where_a_checkpoint_is_broken(tmp_path) -> None:
    save_part(tmp_path, 90, 1, {})
    save_checkpoint(tmp_path, 100, {"parts": {1: 90}}).write_bytes(b"cut off")
    save_checkpoint(tmp_path, 200, {"parts": {}})
    assert part_path(tmp_path, 90, 1).exists()


@pytest.mark.slow
def test_what_killed_processes_left_of_checkpoints_is_deleted_when_the_run_goes_on(
    tmp_path,
) -> None:
    folder = trained(tmp_path, "env=catch", "algo=a2c", "horizon=5") / "checkpoints"
    before = names(folder)
    paths = part_path(tmp_path, 30, 1), folder / "steps_000000000030.pt", tmp_path / "config.yaml"
    for path in paths:
        path.with_name(f".{path.name}.{'0a' * 8}.part").write_bytes(b"cut off")
    train(parse_arguments([f"resume={tmp_path}", "total_steps=50"]), quiet())
    assert names(folder) == [*before, "steps_000000000050.pt"]
    assert not list(tmp_path.glob(".*"))


def test_only_regular_files_of_the_pattern_are_deleted_as_unfinished(tmp_path) -> None:
    number = "0123456789abcdef"
    (tmp_path / f".curve.png.{number}.part").touch()
    kept = (f".dir.{number}.part", f".link.{number}.part", f"a.{number}.part", ".b.0123.part")
    (tmp_path / kept[0]).mkdir()
    (tmp_path / kept[1]).symlink_to(tmp_path / kept[2])
    for name in kept[2:]:
        (tmp_path / name).touch()
    delete_unfinished(tmp_path)
    assert names(tmp_path) == sorted(kept)


@pytest.mark.parametrize("target", ["there", "absent"])
def test_write_whole_does_not_write_through_links(target: str, tmp_path, monkeypatch) -> None:
    """At the name of the file, and at that of the unfinished one, if somebody should guess it."""
    outside = tmp_path / "outside"
    if target == "there":
        outside.write_bytes(b"mine")
    folder = tmp_path / "run"
    folder.mkdir()
    path = folder / "config.yaml"
    path.symlink_to(outside)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new" and not path.is_symlink()
    monkeypatch.setattr("secrets.token_hex", lambda _: "0")
    (folder / ".config.yaml.0.part").symlink_to(outside)
    with pytest.raises(WriteError):
        write_whole(path, b"newer")
    assert names(folder) == [".config.yaml.0.part", "config.yaml"]
    assert outside.read_bytes() == b"mine" if target == "there" else not outside.exists()


def test_events_are_not_written_through_a_link(tmp_path, monkeypatch) -> None:
    """But to a new file beside it."""
    monkeypatch.setattr("time.time", lambda: 1.0)
    name = "events.out.tfevents.0000000001.accel_rl"
    (tmp_path / name).symlink_to(tmp_path / "outside")
    EventsWriter(tmp_path, 0).close()
    assert names(tmp_path) == [name, name.replace("1.", "2.")]
    assert not (tmp_path / "outside").exists()


def test_checkpoints_of_another_run_are_not_deleted_through_a_link(tmp_path, capsys) -> None:
    other, run_dir = (trained(tmp_path / name, "env=catch") for name in ("other", "run"))
    before = names(other / "checkpoints")
    shutil.rmtree(run_dir / "checkpoints")
    (run_dir / "checkpoints").symlink_to(other / "checkpoints")
    assert main(["train", f"resume={run_dir}", "total_steps=2000"]) == 1
    assert "checkpoints is a link" in capsys.readouterr().err
    with pytest.raises(ValueError, match="checkpoints is a link"):
        save_checkpoint(run_dir, 50, state_of(50))
    assert names(other / "checkpoints") == before


def test_checkpoint_is_not_copied_in_memory(tmp_path) -> None:
    """A saved replay may take half of it."""
    state = {"frames": torch.ones(50_000_000, dtype=torch.uint8)}
    tracemalloc.start()
    try:
        save_checkpoint(tmp_path, 5, state)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000
    assert torch.equal(load_checkpoint(list_checkpoints(tmp_path)[-1])["frames"], state["frames"])


def made_directory(config: TrainConfig) -> Path:
    return make_run_directory(config, NOW, run_place(config))


def test_run_directory_is_named_after_env_algo_seed_and_time(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("pong", "ALE-Pong-v5", "mine.games-make")
    for env, name in zip(("pong", "ALE/Pong-v5", "mine.games:make"), names, strict=True):
        stem = f"{name}-a2c-4-20260304-050607"
        for end in ("", "-2", "-3"):  # of the same second
            made = made_directory(TrainConfig(env=env, seed=4))
            assert made == tmp_path / "runs" / f"{stem}{end}" and made.is_dir()


def test_given_run_directory_may_exist_if_it_is_empty(tmp_path) -> None:
    config = TrainConfig(run_dir=str(tmp_path / "a" / "b"))
    assert made_directory(config) == tmp_path / "a" / "b"
    assert made_directory(config) == tmp_path / "a" / "b"
    (tmp_path / "a" / "b" / "metrics.csv").write_text("")
    with pytest.raises(ValueError, match="is not empty, and a run never overwrites another"):
        made_directory(config)


def test_log_takes_records_of_the_package_while_open(tmp_path) -> None:
    logger = logging.getLogger("accel_rl.samplers.pool")
    root = logging.getLogger("accel_rl")
    before = (root.level, root.propagate, list(root.handlers))
    with log_to(tmp_path / "train.log"):
        logger.info("worker 3 was replaced")
    logger.warning("later")
    text = (tmp_path / "train.log").read_text()
    assert "INFO worker 3 was replaced" in text
    assert "later" not in text
    assert (root.level, root.propagate, list(root.handlers)) == before


def test_log_that_cannot_be_written_is_given_up_in_silence(tmp_path, capfd, monkeypatch) -> None:
    full = lambda *_, **__: open("/dev/full", "w")  # noqa: E731
    monkeypatch.setattr("accel_rl.runs.directory.open", full, raising=False)
    with log_to(tmp_path / "train.log"):
        logging.getLogger("accel_rl").info("worker 3 was replaced")
    assert capfd.readouterr() == ("", "")
