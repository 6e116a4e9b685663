"""The benchmarks at tiny sizes: do they run, and is their arithmetic right?"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark_scripts import ROOT, run
from rich.console import Console
from sampler_cases import await_ends

from benchmarks.harness import children, interleave, report
from benchmarks.speed import cases, learning_speed, speed

SCRIPTS = sorted((ROOT / "benchmarks").glob("*/*.py"))
QUIET = Console(quiet=True)
CPUS = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_script_can_be_imported_and_tells_its_options(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"benchmarks.{path.parent.name}.{path.stem}")
    if (hasattr(module, "Options") and hasattr(module, "main")) or path.stem == "__main__":
        monkeypatch.setattr(sys, "argv", [str(path), "--help"])
        with pytest.raises(SystemExit, match=r"^0$"):
            module.main()
        assert "out=" in capsys.readouterr().out or path.stem == "__main__"


# ---- arithmetic ----------------------------------------------------------------------------------


def test_parts_allow_two_cores_adds_core_seconds() -> None:
    # 2 cores: 2/1000 + 1/500 core-seconds a step, so 2 / 0.004 steps a second.
    allowed = report.parts_allow(2, [1000.0], [500.0], threads=1)
    assert allowed == pytest.approx([500.0])


def test_ratio_is_taken_round_by_round() -> None:
    # 1/2, 8/4, 6/8: their median is 3/4, while the ratio of the medians is 6/4.
    spread = report.ratio([1.0, 8.0, 6.0], [2.0, 4.0, 8.0])
    assert spread == {"median": 0.75, "low": 0.5, "high": 2.0}


def test_interval_draws_whole_starts() -> None:
    interval = report.interval
    # Within a start the rounds are equal, so there are two values to draw and no others.
    ours, peer = [1.0] * 50 + [2.0] * 50, [1.0] * 100
    assert interval(ours, peer, rounds_per_start=50) == [1.0, 2.0]
    # A hundred rounds of one start: the median of a draw of 100 is rarely far from the middle.
    low, high = interval([1.0 + 0.01 * n for n in range(100)], peer, rounds_per_start=100)
    assert 1.3 < low < 1.495 < high < 1.7
    assert interval([1.0, 9.0], [2.0], rounds_per_start=1) == [0.5, 0.5]  # the other was cut off


def result(name: str, rates: list[float], settings: Any = None, **row: Any) -> interleave.Result:
    return interleave.Result(interleave.Case(name, "", (), row), settings or {}, rates)


def test_sampler_is_compared_with_parts_peers_and_another_checkout() -> None:
    sampler = {"kind": "atari", "part": "sampler", "network": True, "batch": 32}
    named = result("ours", [81.0, 27.0], {"worker_cores": 1}, **sampler, beside=["ale"])
    results = [
        result("a", [100.0, 50.0], part="emulator"),
        result("b", [90.0, 45.0], part="environment"),
        result("i", [180.0, 90.0], part="inference", batch=32),
        result("ale", [60.0, 30.0], part="ale"),
        named,
        result("ours" + interleave.OTHER, [90.0, 54.0], **sampler),
    ]
    options = {"device": "cpu", "torch_threads": 1}
    rows = speed.summarise(results, {"cores_used": [[0], [1]]}, options)["rows"]
    ours = next(row for row in rows if row["name"] == "ours")
    # 0.81 and 0.54 of the emulator's, with workers on one of the two cores.
    assert ours["of_emulator_a_worker_core"]["median"] == pytest.approx(2 * (0.81 + 0.54) / 2)
    # 2 cores: 2/90 + 1/180 and 2/45 + 1/90 core-seconds a step allow 72 and 36.
    assert ours["of_parts"]["median"] == pytest.approx((81 / 72 + 27 / 36) / 2)
    assert ours["of"]["ale"]["median"] == pytest.approx((1.35 + 0.9) / 2)
    assert ours["of"]["ours" + interleave.OTHER]["median"] == pytest.approx((0.9 + 0.5) / 2)


def test_learning_speed_takes_the_rows_in_which_it_learned(tmp_path: Path) -> None:
    shares = dict.fromkeys(
        (*learning_speed.SHARES.values(), *learning_speed.BESIDE.values()), "0.25"
    )
    table = [
        # steps, updates, training_seconds, steps_per_second, updates_per_second
        ("100", "0", "1", "100", "0"),  # it does not learn yet
        ("200", "10", "2", "100", "10"),
        ("400", "50", "3", "200", "40"),
        ("500", "70", "5", "50", "10"),
    ]
    names = ("steps", "updates", "training_seconds", "steps_per_second", "updates_per_second")
    lines = [",".join((*names, *shares)), *(",".join((*row, *shares.values())) for row in table)]
    path = tmp_path / "metrics.csv"
    path.write_text("\n".join(lines) + "\n600,8")  # the last one is being written
    row = learning_speed.summarise(learning_speed.learning_rows(path))
    # 300 steps and 60 updates in 3 s.
    assert row["steps_per_second"] == {"mean": 100.0, "low": 50.0, "high": 200.0}
    assert row["updates_per_second"] == 20.0 and row["shares"]["learning"] == pytest.approx(0.25)


# ---- cases ---------------------------------------------------------------------------------------


def test_cases_are_distinct_and_ours_are_run_by_another_checkout_too(tmp_path: Path) -> None:
    kinds = ("atari", "vector", "batch", "train")
    options = cases.Options(kinds=kinds, envs_per_core=(8, 32), peers=("ale",))
    made = cases.make_cases(options, [[0], [1]], {"ale": "python"})
    assert len({case.name for case in made}) == len(made)
    assert {name for case in made for name in case.row.get("beside", ())} < {c.name for c in made}
    both = interleave.with_other(made, str(ROOT))
    others = [case for case in both if case.name.endswith(interleave.OTHER)]
    assert len(both) == len(made) + len(others)
    assert len(others) == sum(case.python == sys.executable for case in made) < len(made)
    with pytest.raises(SystemExit, match="no checkout"):
        interleave.with_other(made, str(tmp_path))


# ---- processes -----------------------------------------------------------------------------------


def catch(name: str, game: str = "catch") -> interleave.Case:
    spec = {"cpus": CPUS, "part": "environment", "game": game, "atari": {}, "envs": 1, "seed": 0}
    return interleave.Case(name, "speed/bare.py", (spec,), {})


@pytest.mark.slow
@pytest.mark.processes
def test_measure_keeps_all_rates_and_tells_why_a_case_failed() -> None:
    made = [catch("good"), catch("broken", "no_game")]
    results = interleave.measure(made, rounds=2, seconds=0.01, console=QUIET, starts=2)
    assert len(results["good"].rates) == 4 and results["good"].rounds_per_start == 2
    assert "no_game" in str(results["broken"].error) and results["broken"].rates == []


@pytest.mark.slow
@pytest.mark.processes
def test_measure_that_is_interrupted_returns_what_there_is(monkeypatch) -> None:
    answers = iter([100.0, KeyboardInterrupt])

    def answer(self: children.Child, seconds: float) -> float:
        if (each := next(answers)) is KeyboardInterrupt:
            raise KeyboardInterrupt
        return each

    monkeypatch.setattr(children.Child, "answer", answer)
    results = interleave.measure([catch("one")], rounds=3, seconds=0.01, console=QUIET)
    assert results["one"].rates == [100.0]


@pytest.mark.processes
def test_child_that_leaves_processes_behind_is_ended_with_them(tmp_path: Path) -> None:
    script = tmp_path / "benchmarks" / "leaky.py"
    script.parent.mkdir()
    script.write_text(
        "import subprocess\nworker = subprocess.Popen(['sleep', '60'], stdout=-3)\n"
        "raise ValueError(f'worker {worker.pid}')"
    )
    child = children.Child("leaky.py", {}, checkout=tmp_path)
    try:
        with pytest.raises(children.ChildError, match="worker") as failed:
            child.wait_until_ready()
    finally:
        child.close()
    await_ends([int(str(failed.value).rpartition(" ")[2])])


TINY = f"rounds=1 seconds=0.1 other={ROOT}"
PROGRAMS = (
    "speed/speed.py rounds=1 seconds=0.1 envs_per_core=[2] peers=[ale] "
    "'cases=[emulator,batch=2,pinned=False network=True]'",
    f"speed/speed.py {TINY} kinds=[vector,batch] vector=CartPole-v1:4",
    f"speed/speed.py {TINY} kinds=[train] 'train=[algo=a2c env=catch learners=2 num_workers=0]'",
    f"ga3c/ga3c_speeds.py {TINY} game=catch networks=[mlp] num_envs=2",
    "scaling/scaling.py rounds=1 seconds=0.1 game=catch learners=[2] num_envs=4",
    "speed/learning_speed.py 'presets=[a2c model=mlp]' game=catch log_interval=80 seconds=0.05",
    "peers/peers.py rounds=1 seconds=0.1 algos=[a2c] networks=[preset] peers=[] "
    "variants=[num_workers=0]",
    f"peers/small_speed.py rounds=1 steps=1100 tasks=[dqn] other={ROOT}",
)


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.parametrize("program", PROGRAMS)
def test_program_at_a_tiny_size_writes_figures(program: str, tmp_path: Path) -> None:
    script, *given = shlex.split(program)
    done = run(f"benchmarks/{script}", *given, f"out={tmp_path / 'it'}")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "it.json").read_text())
    assert found["machine"]["cpu"] and found["rows"]
    assert all("steps_per_second" in row for row in found["rows"])
