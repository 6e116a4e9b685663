"""The benchmark of GA3C and PAAC at tiny sizes: does it run, and is its arithmetic right?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark_scripts import ONCE, run

from benchmarks.ga3c import ga3c, ga3c_counts, ga3c_runs, ga3c_speeds
from benchmarks.harness import interleave, usage
from benchmarks.harness.options import parse

GA3C = ("game=catch", "networks=[mlp]", "num_envs=2", "learners=1")


@pytest.mark.learning
def test_ga3c_grid_tiny_writes_table_json_and_figure(tmp_path: Path) -> None:
    out = tmp_path / "ga3c"
    grid = ("grid_agents=[1,2]", "grid_predictors=[1]", "grid_trainers=[2]")
    done = run("benchmarks/ga3c/ga3c.py", "parts=[tps]", *ONCE, *GA3C, *grid, f"out={out}")
    assert done.returncode == 0, done.stderr
    rows = json.loads(Path(f"{out}_tps.json").read_text())["rows"]
    assert [(row["predictors"], row["trainers"], row["agents"]) for row in rows] == [
        (1, 2, 1),
        (1, 2, 2),
    ]
    assert all(row["predictions_per_second"]["median"] > 0 for row in rows)
    assert Path(f"{out}_tps.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.learning
def test_ga3c_speeds_tiny_compares_engines_with_their_parts(tmp_path: Path) -> None:
    out = tmp_path / "ga3c"
    done = run(
        "benchmarks/ga3c/ga3c.py", "parts=[pps]", "rounds=1", "seconds=0.5", *GA3C, f"out={out}"
    )
    assert done.returncode == 0, done.stderr
    assert "GA3C makes" in done.stdout and "parts allow" in done.stdout
    rows = json.loads(Path(f"{out}_pps.json").read_text())["rows"]
    assert [row["engine"] for row in rows] == ["a3c", "ga3c", "paac", "a2c"]
    for row in rows:
        assert row["of_allowed"]["median"] > 0 and row["of_a3c"]["median"] > 0
        assert row["trainings_per_second"]["median"] > 0 and row["cpu_share"]["median"] > 0
    assert Path(f"{out}_pps.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.learning
def test_ga3c_runs_tiny_write_json_and_figures(tmp_path: Path) -> None:
    out = tmp_path / "ga3c"
    tuner = ("best=[1,1,2]", "tuner_seconds=1", "tuner_interval_seconds=0.3", "grid_agents=[2]")
    split = ("split_envs=[4]", "split_networks=[mlp]", "split_seconds=0.1", "split_log_interval=64")
    batch = ("batches=[5]", "seeds=[0,1]", "batch_steps=1000", "batch_envs=2")
    parts = "parts=[tuner,split,batch]"
    done = run("benchmarks/ga3c/ga3c.py", parts, *ONCE, *GA3C, *tuner, *split, *batch, f"out={out}")
    assert done.returncode == 0, done.stderr
    row = json.loads(Path(f"{out}_tuner.json").read_text())["rows"][0]
    assert len(row["windows"]) >= 2 and row["of_best"]["median"] > 0
    row = json.loads(Path(f"{out}_split.json").read_text())["rows"][0]
    assert sum(row["shares"][name] for name in ("waiting", "learning")) > 0
    row = json.loads(Path(f"{out}_batch.json").read_text())["rows"][0]
    assert len(row["final"]) == 2 and row["training_batch"] >= 5
    for part in ("tuner", "split", "batch"):
        assert Path(f"{out}_{part}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("parts=[speed]", "must be some of pps"),
        ("parts=[tuner]", "give both, or best"),
        ("best=[1,2]", "three numbers"),
    ],
)
def test_ga3c_options_that_do_not_fit_are_refused(options: str, words: str) -> None:
    given = parse(ga3c.Options, [options], "")
    assert words in ga3c.check(given)


# Milliseconds of a step: 1 in the simulator, 2 of inference, 3 of update.
@pytest.mark.parametrize(
    ("cores", "threads", "has_device", "expected"),
    [
        (2, (2, 2, 9), False, 2 / 0.006),
        (9, (1, 2, 9), False, 1 / 0.002),
        (9, (2, 1, 9), False, 1 / 0.003),
        (60, (9, 9, 1), False, 1 / 0.001),
        (2, (9, 9, 9), True, 1 / 0.005),
        (1, (9, 9, 9), True, 1 / 0.005),
    ],
    ids=["cores", "predictors", "trainers", "agents", "device", "one_core"],
)
def test_ga3c_bound_is_that_of_the_scarcest(
    cores: int, threads: tuple[int, int, int], has_device: bool, expected: float
) -> None:
    costs = ga3c_speeds.QueuedCosts(simulator=0.001, inference=0.002, update=0.003)
    bound = ga3c_speeds.queued_bound(costs, threads, cores, has_device=has_device)
    assert bound == pytest.approx(expected)


def test_ga3c_speeds_are_held_against_a3c_and_the_parts() -> None:

    def result(part: str, engine: str, rates: list[float], numbers: dict[str, float]) -> Any:
        row = {"part": part, "engine": engine, "network": "nips", "learners": 2, "device": "cpu"}
        row |= {"steps_per_update": 5, "learners": 2 if engine == "a3c" else 1}
        case = interleave.Case(f"{part}, {engine}", "", (), row)
        settings = {"shape": {"num_envs": 1, "horizon": 5, "num_groups": 1}, "threads": [2, 2, 4]}
        children = [numbers] * row["learners"] if part == "train" else [numbers]
        return interleave.Result(case, settings, rates, [children for _ in rates])

    costs = {"simulator": 0.001, "inference": 0.003, "update": 0.010, "pushes": 0.002}
    sums = {
        "own_cpu_seconds": 1.2,
        "predictions": 300,
        "prediction_batches": 100,
        "trainings": 4,
        "samples": 88,
    }
    batches = {"inference_2": 0.004, "inference_4": 0.008, "update_20": 0.040, "update_25": 0.050}
    rows = ga3c_speeds.summarise(
        [
            result("train", "a3c", [200.0], {"seconds": 2.0, "cpu_seconds": 1.5}),
            result("parts", "a3c", [1.0], {**costs, "num_updates": 1.0, "gradient_bytes": 0}),
            result("train", "ga3c", [300.0], {"seconds": 2.0, "cpu_seconds": 3.0, **sums}),
            result("parts", "ga3c", [1.0], batches),
        ],
        cores=2,
    )
    a3c, ga3c = rows
    # Two learners, each (1 + 3) ms for every of 5 steps, then 10 ms, and 2 ms in the store.
    assert a3c["allowed"]["median"] == pytest.approx(2 * 5 / 0.032)
    assert a3c["trainings_per_second"]["median"] == 40 and a3c["cpu_share"]["median"] == 0.75
    # Batches of 3 and 22: 1 + 6 / 3 + 44 / 22 = 5 ms of two cores for each step.
    assert ga3c["allowed"]["median"] == pytest.approx(2 / 0.005)
    assert ga3c["of_allowed"]["median"] == pytest.approx(300 / 400)
    assert ga3c["of_a3c"]["median"] == 1.5 and ga3c["trainings_per_second"]["median"] == 2
    assert ga3c["allowed_of_a3c"] == pytest.approx(400 / (10 / 0.032))
    assert ga3c["core_us"] == pytest.approx(
        {
            "agents": 6000,
            "threads": 4000,
            "idle": 1e6 / 300,
            "simulator": 1000,
            "inference": 2000,
            "update": 2000,
        }
    )


def test_ga3c_cpu_use_counts_children() -> None:
    command = [sys.executable, "-c", "input(); sum(range(3 * 10**7)); print(); input()"]
    before = usage.cpu_seconds()
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin and child.stdout
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        used = usage.cpu_seconds(child.pid)
        assert usage.cpu_seconds() - before > used - 0.01 > 0.05
        child.stdin.write("\n")


def test_ga3c_curves_give_final_score_and_area() -> None:
    # From -1 to 1 in 10 steps, then 30 steps at 1: (10 * 0 + 30 * 1) / 40.
    curve = {"steps": [0, 10, 40], "score": [-1.0, 1.0, 1.0], "training_batch": [20] * 3}
    worse = curve | {"score": [-1.0, -1.0, -1.0]}
    row = ga3c_runs.summarise_curves([each | {"lag": [1] * 3} for each in (curve, worse)])
    assert row["final"] == [1.0, -1.0] and row["area"] == pytest.approx([0.75, -1.0])
    assert row["area_spread"] == pytest.approx(1.75)


def test_ga3c_tuner_found_the_last_counts_that_were_kept() -> None:
    names = ("num_predictors", "num_trainers", "num_agents", "is_kept")
    counts = ((1, 1, 1, 1), (1, 1, 2, 1), (2, 1, 2, 0))
    windows = [dict(zip(names, map(float, each), strict=True)) for each in counts]
    assert ga3c_counts.last_kept(windows) == (1, 1, 2)
