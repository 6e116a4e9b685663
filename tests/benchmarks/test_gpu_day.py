"""The calls for a GPU machine: time limits, targets, and the whole in its dry form."""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.gpu_day import __main__ as gpu_day
from benchmarks.gpu_day import steps, targets, until


def step(*code: str, seconds: float = 20.0) -> steps.Step:
    return steps.Step("step", seconds, (sys.executable, "-c", *code))


def test_run_step_that_fails_tells_its_status(tmp_path: Path) -> None:
    row = gpu_day.run(step("print('words'); raise SystemExit(3)"), tmp_path / "log", 1e12)
    assert row["error"] == "exit status 3"
    assert (tmp_path / "log").read_text() == "words\n"


def test_run_step_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    row = gpu_day.run(step(code, seconds=4.0), tmp_path / "log", 1e12)
    assert row["error"] == "not done after 4 s"
    deadline = time.monotonic() + 10
    while is_running(int(mark.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_run_step_without_time_left_is_not_started(tmp_path: Path) -> None:
    row = gpu_day.run(step("raise SystemExit(3)"), tmp_path / "log", time.monotonic())
    assert row["error"] == "no time was left"


@pytest.mark.parametrize("call", steps.CALLS)
def test_make_steps_fit_in_one_call(call: str, tmp_path: Path) -> None:
    made = steps.make_steps(call, tmp_path, is_dry=False)
    # The last step of `deep` takes what is left.
    assert sum(each.seconds for each in made[:-1]) < gpu_day.CALL_SECONDS
    assert call == "deep" or sum(each.seconds for each in made) < gpu_day.CALL_SECONDS
    assert all("device=cuda" in each.command for each in made if "gpu_day/" in each.command[1])


def test_make_steps_with_leanrl_names_its_folder(tmp_path: Path) -> None:
    made = steps.make_steps("peers", tmp_path, is_dry=False, leanrl="/leanrl")
    assert "leanrl=/leanrl" in made[-1].command


def write(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"rows": rows}))


def held(folder: Path) -> dict[str, tuple[float | None, bool | None]]:
    return {row["what"]: (row["figure"], row["reached"]) for row in targets.hold(folder)}


def test_hold_without_reports_measures_nothing(tmp_path: Path) -> None:
    assert set(held(tmp_path).values()) == {(None, None)}


def test_hold_known_reports_compares_with_targets(tmp_path: Path) -> None:
    ratio = {"steps_per_second": {"median": 40_000}, "of_emulator_a_worker_core": {"median": 0.96}}
    write(tmp_path, "sampling_gpu", {"part": "sampler", "network": True, **ratio})
    learned = [
        {"preset": "a2c", "steps_per_second": {"mean": 20_000}, "hours": 0.7},
        {"preset": "a2c num_envs=120", "steps_per_second": {"mean": 32_000}, "hours": 0.4},
        {"preset": "ppo", "error": "it failed"},
        {"preset": "pqn", "steps_per_second": {"mean": 1}, "hours": 0.8},
    ]
    write(tmp_path, "learning_gpu", *learned)
    write(tmp_path, "until_pong_gpu", {"reached": True, "seconds": 80})
    write(tmp_path, "until_breakout_gpu", {"reached": False, "seconds": 400})
    write(tmp_path, "ga3c_gpu_pps", {"engine": "ga3c", "network": "nips", "of_a3c": {"median": 3}})
    found = held(tmp_path)
    assert found["sampling with A3C-Net / emulator, a worker core"] == (0.96, True)
    assert found["A2C"] == (32_000, True)
    assert found["A2C / sampling with A3C-Net"] == (0.8, False)  # 32,000 / 40,000, below 0.85
    assert found["PPO, 8 environments"] == (None, None)
    assert found["PQN: 50 M steps"] == (48.0, False)  # 0.8 hours are more than 45 minutes
    assert found["Pong: a return of 18"] == (80, True)
    assert found["Breakout: a return of 400"] == (None, False)
    assert found["GA3C / CPU A3C, nips"] == (3, False)


def test_until_looks_at_the_best_return(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    names = ("steps", "training_seconds", "updates_per_second", until.RETURN)
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [names, (100, 1, 5, "nan"), (200, 2, 5, 17.5), (300, 3, 5, 17)]
        )
    row: dict[str, Any] = {}
    until.look(path, 17.5, 4.0, row)
    expected = {"seconds": 4.0, "steps": 300, "training_seconds": 3, "best_return": 17.5}
    assert row == expected | {"reached": True}
    until.look(path, 18, 5.0, row)
    assert row["seconds"] == 5.0 and not row["reached"]


@pytest.mark.learning
@pytest.mark.parametrize("call", steps.CALLS)
def test_dry_call_writes_reports_and_targets(
    call: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = gpu_day.main([call, "--dry", "--out", str(tmp_path)])
    output = capsys.readouterr().out
    assert status == 0, output
    assert "DRY" in output and "Targets" in output
    names = {
        "truth": {"probe_gpu"},
        "speed": {"learning_gpu", "sampling_gpu", "learning_cat_dqn_gpu"},
        "peers": {"ga3c_gpu_pps"},
        "deep": {"until_pong_gpu", "until_breakout_gpu"},
    }[call]
    reports = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert names < set(reports)
    assert all({"machine", "options", "rows"} <= set(report) for report in reports.values())
    if call == "speed":
        measured = {row["what"] for row in targets.hold(tmp_path) if row["figure"] is not None}
        assert len(measured) == 7
