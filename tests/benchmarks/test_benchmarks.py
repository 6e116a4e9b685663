"""The benchmarks at tiny sizes: do they run, and is their arithmetic right?"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark_scripts import ONCE, run
from rich.console import Console

from benchmarks.harness import interleave, report
from benchmarks.replay import replay_speed
from benchmarks.sampling import sampling_cases
from benchmarks.scaling import scaling, scaling_report, store_speed
from benchmarks.training import learning_speed

TINY = ("rounds=2", "seconds=0.05", "envs_per_core=[2]", "bar_envs_per_core=2", "num_cores=1")


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


def test_measure_with_several_starts_keeps_all_rates() -> None:
    spec = {"cpus": sorted(os.sched_getaffinity(0)), "part": "environment", "game": "catch"}
    case = interleave.Case(
        "catch", "benchmarks/sampling/bare.py", (spec | {"atari": {}, "envs": 1, "seed": 0},), {}
    )
    console = Console(quiet=True)
    results = interleave.measure([case], rounds=2, seconds=0.01, console=console, starts=2)
    assert len(results["catch"].rates) == 4 and results["catch"].rounds_per_start == 2


def test_summarise_known_rates_gives_ratios_and_bars() -> None:

    def result(rates: list[float], **row: Any) -> Any:
        name = " ".join(map(str, row.values()))
        case = interleave.Case(name, "", (), {"hyperthreads": 1, **row})
        return interleave.Result(case, rates=rates)

    sampler = {"part": "sampler", "envs_per_core": 32, "groups": 2, "workers_per_core": 1}
    results = [
        result([100.0, 50.0], part="emulator", envs_per_core=1, cached_starts=True),
        result([90.0, 45.0], part="environment", envs_per_core=1),
        result([81.0, 27.0], **sampler, batch=32, network=False),
        result([60.0, 30.0], part="envpool", asynchronous=False, pinned=False, network=False),
    ]
    options = {"observation_size": "104x80", "bar_envs_per_core": 32, "device": "cpu", "busy": 0.0}
    summary = report.summarise(results, {"cores_used": [[0], [1]]}, options)
    assert summary["rows"][2]["of_environment"]["median"] == pytest.approx((0.9 + 0.6) / 2)
    medians = [bar["median"] for bar in summary["bars"]]
    assert medians == pytest.approx([0.75, (0.81 + 0.54) / 2, (1.35 + 0.9) / 2])


def test_summarise_sampler_beside_a_gpu_compares_worker_cores() -> None:
    def result(rate: float, settings: dict[str, Any], **row: Any) -> Any:
        case = interleave.Case(row["part"], "", (), {"hyperthreads": 1, **row})
        return interleave.Result(case, rates=[rate], settings=settings)

    sampler = {"part": "sampler", "envs_per_core": 8, "groups": 2, "workers_per_core": 1}
    results = [
        result(160.0, {}, part="emulator", envs_per_core=1, cached_starts=True),
        result(150.0, {}, part="environment", envs_per_core=1),
        result(135.0, {"worker_cores": 3}, **sampler, batch=16, network=False),
    ]
    options = {"observation_size": "104x80", "bar_envs_per_core": 8, "device": "cuda", "busy": 0.0}
    summary = report.summarise(results, {"cores_used": [[0], [1], [2], [3]]}, options)
    row = summary["rows"][2]
    # The emulator made 40 a core of four; the sampler 45 on each of the three with workers.
    assert row["worker_cores"] == 3
    assert row["of_emulator_a_worker_core"]["median"] == pytest.approx(45 / 40)
    assert "of_emulator_a_worker_core" not in summary["rows"][1]


def test_make_cases_of_a_sweep_fit_and_are_distinct() -> None:
    options = sampling_cases.Options(peers=("ale",))
    cases = sampling_cases.make_cases(options, [[0, 2], [1, 3]], {"ale": sys.executable})
    assert len({case.name for case in cases}) == len(cases)
    samplers = [case for case in cases if case.row["part"] == "sampler"]
    assert {case.row["hyperthreads"] for case in samplers} == {1, 2}
    for case in samplers:
        sampler = case.specs[0]["sampler"]
        assert sampler["num_envs"] % sampler["num_groups"] == 0


def test_measure_child_that_fails_tells_why() -> None:
    spec = {"cpus": sorted(os.sched_getaffinity(0)), "part": "environment", "game": "no_game"}
    case = interleave.Case(
        "broken", "benchmarks/sampling/bare.py", (spec | {"atari": {}, "envs": 1, "seed": 0},), {}
    )
    console = Console(quiet=True)
    results = interleave.measure([case], rounds=1, seconds=0.01, console=console)
    assert "no_game" in results["broken"].error
    assert results["broken"].rates == []


@pytest.mark.learning
def test_sampling_speed_tiny_writes_table_json_and_figure(tmp_path: Path) -> None:
    out = tmp_path / "speed"
    done = run(
        "benchmarks/sampling/sampling_speed.py",
        *TINY,
        f"out={out}",
        "groups=[2]",
        "workers_per_core=[1]",
    )
    assert done.returncode == 0, done.stderr
    assert "A3C-Net x1" in done.stdout and "bar 0.85" in done.stdout
    report = json.loads(Path(f"{out}.json").read_text())
    parts = {(row["part"], row.get("network")) for row in report["rows"]}
    assert parts == {
        ("emulator", None),
        ("environment", None),
        ("sampler", False),
        ("sampler", True),
        ("inference", True),
    }
    assert all(len(row["rates"]) == 2 and min(row["rates"]) > 0 for row in report["rows"])
    assert report["machine"]["cpu"] and report["options"]["game"] == "breakout"
    assert Path(f"{out}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.learning
def test_sampling_speed_with_a_peer_compares_it(tmp_path: Path) -> None:
    out = tmp_path / "speed"
    sizes = ("peer_envs_per_core=[2]", "network=false", "groups=[2]", "workers_per_core=[1]")
    more = ("rounds=1", "starts=2", "busy=0.5", "cases=[part=sampler, asynchronous=True]")
    done = run(
        "benchmarks/sampling/sampling_speed.py", *TINY, *sizes, *more, "peers=[ale]", f"out={out}"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(Path(f"{out}.json").read_text())
    assert {row["part"] for row in report["rows"]} == {"sampler", "ale"}
    lead = report["bars"][-1]
    assert lead["what"].startswith("sampler / ale, asynchronous") and lead["bar"] == 1.0
    assert 0 < lead["interval"][0] <= lead["interval"][1]
    assert any("C++ peers (ale" in bar["what"] for bar in report["bars"])


@pytest.mark.learning
def test_vector_env_speed_tiny_compares_with_the_loop_and_the_sampler(tmp_path: Path) -> None:
    out = tmp_path / "vector_env"
    done = run(
        "benchmarks/vector/vector_env_speed.py",
        "rounds=1",
        "seconds=0.05",
        "num_envs=4",
        f"out={out}",
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(Path(f"{out}.json").read_text())["rows"]
    parts = [row["part"] for row in rows]
    assert parts == ["loop", *["vector_env"] * 2, "gymnasium", "sampler", *["vector_env"] * 2]
    assert all(row["of_reference"]["median"] > 0 for row in rows)


@pytest.mark.learning
def test_update_threads_tiny_compares_one_thread_with_all(tmp_path: Path) -> None:
    out = tmp_path / "threads"
    done = run(
        "benchmarks/training/update_threads.py",
        "cases=[a2c 80]",
        "busy=[0,1]",
        "seconds=0.01",
        f"out={out}",
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(Path(f"{out}.json").read_text())["rows"]
    assert [(row["case"], row["busy"]) for row in rows] == [("a2c 80", 0), ("a2c 80", 1)]
    assert all(row["all_to_one"]["median"] > 0 and row["rounds"] >= 7 for row in rows)


@pytest.mark.learning
def test_store_speed_tiny_writes_table_json_and_figure(tmp_path: Path) -> None:
    out = tmp_path / "store"
    sizes = ("rules=[adam]", "num_chunks=[3]", "learners=[1]", "work_ms=[0]", "rounds=1")
    done = run("benchmarks/scaling/store_speed.py", *sizes, "seconds=0.05", f"out={out}")
    assert done.returncode == 0, done.stderr
    assert "adam: push, chunks: 3 / its parts" in done.stdout
    rows = json.loads(Path(f"{out}.json").read_text())["rows"]
    assert [row["part"] for row in rows] == ["local", "parts", "push", "push", "push"]
    assert rows[2]["of_parts"]["median"] > 0 and rows[3]["wait_ms"]["median"] >= 0
    assert Path(f"{out}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.learning
@pytest.mark.parametrize("algo", ["ppo minibatch_size=64", "dqn"])
def test_scaling_tiny_compares_learners_with_the_model(algo: str, tmp_path: Path) -> None:
    out = tmp_path / "scaling"
    sizes = ("game=catch", "learners=[2]", "num_envs=4", "what=[train]")
    done = run("benchmarks/scaling/scaling.py", *ONCE, *sizes, f"algos=[{algo}]", f"out={out}")
    assert done.returncode == 0, done.stderr
    report = json.loads(Path(f"{out}.json").read_text())
    parts = [(row["part"], row["sync"]) for row in report["rows"]]
    assert parts == [
        (part, sync) for sync in ("all_reduce", "store") for part in ("parts", "train")
    ]
    in_step, apart = report["rows"][1], report["rows"][3]
    assert in_step["of_predicted"]["median"] > 0 and apart["of_predicted"]["median"] > 0
    assert in_step["shares"]["all_reduce"] > 0 == in_step["shares"]["push"]
    assert apart["shares"]["push"] > 0 == apart["shares"]["all_reduce"]
    assert Path(f"{out}.png").read_bytes().startswith(b"\x89PNG")


def test_scaling_lets_q_learning_begin_soon_unless_told_otherwise() -> None:
    options = scaling.Options(algos=("dqn min_steps=900", "a2c"), learners=(1,), what=("train",))
    cases = [*scaling.make_cases(options, [0])]
    given = [" ".join(case.specs[0]["options"]) for case in cases]
    assert all(each.endswith(" replay_size=50000") for each in given[:4])
    assert [each.count("min_steps=") for each in given] == [1, 1, 1, 1, 0, 0, 0, 0]


def test_benchmarks_on_a_gpu_ask_for_it_where_it_is_ours() -> None:
    cores = [[0], [1]]
    replay = replay_speed.Options(device="cuda")
    cases = replay_speed.make_cases(replay, cores, {"cpprb": "python"}, "84x84", 1)
    assert [case.specs[0]["device"] for case in cases] == ["cuda", "cuda", "cpu", "cpu"]
    learning = scaling.Options(device="cuda", learners=(1,), what=("train",))
    given = [case.specs[0]["options"] for case in scaling.make_cases(learning, [0])]
    assert all("device=cuda" in each for each in given)
    with contextlib.ExitStack() as stores:
        options = store_speed.Options(device="cuda", rules=("adam",))
        pushes = [*store_speed.make_cases(options, [0], stores)]
    assert {case.specs[0]["device"] for case in pushes} == {"cuda"}


def test_scaling_model_of_the_papers_machine() -> None:
    options = {"simulator_ms": 1.0, "gpu_inference_ms": 0.5}
    options |= {"gpu_update_ms": 8.0, "gpu_all_reduce_ms": 2.0}
    rows = scaling_report.predict_paper(options)
    # 64 / 8 in 2 groups on 4 cores: 2 ms a step, 10 + 8 + 2 ms an iteration of 8 * 8 * 5 steps.
    assert rows[0]["sampling"] == pytest.approx(64 / 0.002)
    assert rows[0]["training"] == pytest.approx(320 / 0.020)


@pytest.mark.parametrize(
    "script",
    [
        "sampling.sampling_speed",
        "peers.peers",
        "vector.vector_env_speed",
        "replay.replay_speed",
        "training.learning_speed",
        "scaling.store_speed",
        "scaling.scaling",
        "ga3c.ga3c",
    ],
)
def test_benchmark_unknown_option_names_it(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["script", "round=1"])
    with pytest.raises(SystemExit, match="1"):
        importlib.import_module(f"benchmarks.{script}").main()
    error = capsys.readouterr().err
    assert "round" in error and "--help" in error


def test_benchmark_run_as_a_script_finds_the_package() -> None:
    done = run("benchmarks/replay/replay_speed.py", "--help")
    assert done.returncode == 0, done.stderr
    assert "rounds=5" in done.stdout


@pytest.mark.learning
def test_replay_speed_tiny_writes_table_json_and_figure(tmp_path: Path) -> None:
    out = tmp_path / "replay"
    sizes = ("size=600", "peer_size=600", "batch_size=32", "num_envs=8", "images=[36x36]")
    done = run(
        "benchmarks/replay/replay_speed.py", *ONCE, *sizes, "peers=[]", "n_steps=[3]", f"out={out}"
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(Path(f"{out}.json").read_text())["rows"]
    assert [(row["part"], row["operation"]) for row in rows] == [
        ("accel_rl", "sample"),
        ("accel_rl", "add"),
    ]
    assert all(row["steps_per_second"]["median"] > 0 for row in rows)
    assert Path(f"{out}.png").read_bytes().startswith(b"\x89PNG")


def test_replay_speed_compares_with_the_same_operation() -> None:
    peers = dict.fromkeys(replay_speed.PACKAGES, "")
    cases = replay_speed.make_cases(replay_speed.Options(), [[0], [1]], peers, "104x80", 1)
    assert len({case.name for case in cases}) == len(cases) == 4 * 2
    rates = [12.0, 90.0, *[3.0, 9.0] * 3]
    pairs = zip(cases, rates, strict=True)
    rows = replay_speed.summarise(interleave.Result(case, rates=[rate]) for case, rate in pairs)
    assert [row["ours"]["median"] for row in rows] == [1.0, 1.0, *[4.0, 10.0] * 3]
    # 512 transitions at 12 a second.
    assert replay_speed.milliseconds(rows[0], 512)["median"] == pytest.approx(512e3 / 12)


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
    assert row["updates_per_second"] == 20.0
    assert row["hours"] == pytest.approx(50e6 / 100 / 3600)
    assert row["shares"]["learning"] == pytest.approx(0.25)


@pytest.mark.learning
def test_learning_speed_tiny_writes_table_json_and_figure(tmp_path: Path) -> None:
    out = tmp_path / "learning"
    tiny = "dqn batch_size=4 sampler.num_envs=4 model=mlp training_intensity=1"
    sizes = ("min_steps=64", "replay_size=200", "log_interval=16", "seconds=0.05")
    done = run(
        "benchmarks/training/learning_speed.py",
        f"presets=['{tiny}']",
        *sizes,
        "game=catch",
        f"out={out}",
    )
    assert done.returncode == 0, done.stderr + done.stdout
    (row,) = json.loads(Path(f"{out}.json").read_text())["rows"]
    assert row["updates_per_second"] > 0 and 0 < row["shares"]["learning"] < 1
    assert Path(f"{out}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.learning
def test_vector_conformance_writes_a_table(tmp_path: Path) -> None:
    done = run(
        "benchmarks/vector/vector_conformance.py", "num_steps=30", f"out={tmp_path / 'rules'}"
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "rules.md").read_text()
    assert "accel_rl VectorEnv, SAME_STEP" in text and "| final observations |" in text
    assert "accel_rl VectorEnv" not in text.split("- ", 1)[-1]


@pytest.mark.learning
def test_worker_parts_tiny_adds_up(tmp_path: Path) -> None:
    sizes = ("starts=1", "seconds=0.1", "pages=[normal]", "affinity=[auto]")
    done = run("benchmarks/sampling/worker_parts.py", *sizes, f"out={tmp_path / 'parts'}")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "parts.json").read_text())["rows"]
    assert [row["process"] for row in rows] == ["worker", "loop"]
    for row in rows:
        us = {part: spread["median"] for part, spread in row["us"].items()}
        assert all(value > 0 for value in us.values())
        assert sum(us.values()) - us["step"] < 1.1 * us["step"]
