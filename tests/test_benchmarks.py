"""The benchmarks at tiny sizes: do they run, and is their arithmetic right?"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
ONCE = ("rounds=1", "seconds=0.05")
TINY = ("rounds=2", "seconds=0.05", "envs_per_core=[2]", "bar_envs_per_core=2", "num_cores=1")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the folder, as its scripts do."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=110)


def test_parts_allow_two_cores_adds_core_seconds(load: Any) -> None:
    # 2 cores: 2/1000 + 1/500 core-seconds a step, so 2 / 0.004 steps a second.
    allowed = load("report").parts_allow(2, [1000.0], [500.0], threads=1)
    assert allowed == pytest.approx([500.0])


def test_ratio_is_taken_round_by_round(load: Any) -> None:
    # 1/2, 8/4, 6/8: their median is 3/4, while the ratio of the medians is 6/4.
    spread = load("report").ratio([1.0, 8.0, 6.0], [2.0, 4.0, 8.0])
    assert spread == {"median": 0.75, "low": 0.5, "high": 2.0}


def test_summarise_known_rates_gives_ratios_and_bars(load: Any) -> None:
    interleave, report = load("interleave"), load("report")

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
    options = {"observation_size": "104x80", "bar_envs_per_core": 32, "device": "cpu"}
    summary = report.summarise(results, {"cores_used": [[0], [1]]}, options)
    assert summary["rows"][2]["of_environment"]["median"] == pytest.approx((0.9 + 0.6) / 2)
    medians = [bar["median"] for bar in summary["bars"]]
    assert medians == pytest.approx([0.75, (0.81 + 0.54) / 2, (1.35 + 0.9) / 2])


def test_make_cases_of_a_sweep_fit_and_are_distinct(load: Any) -> None:
    module = load("sampling_cases")
    options = module.Options(peers=("ale",))
    cases = module.make_cases(options, [[0, 2], [1, 3]], {"ale": sys.executable})
    assert len({case.name for case in cases}) == len(cases)
    samplers = [case for case in cases if case.row["part"] == "sampler"]
    assert {case.row["hyperthreads"] for case in samplers} == {1, 2}
    for case in samplers:
        sampler = case.specs[0]["sampler"]
        assert sampler["num_envs"] % sampler["num_groups"] == 0


def test_measure_child_that_fails_tells_why(load: Any) -> None:
    interleave = load("interleave")
    spec = {"cpus": sorted(os.sched_getaffinity(0)), "part": "environment", "game": "no_game"}
    case = interleave.Case("broken", "bare.py", (spec | {"atari": {}, "envs": 1, "seed": 0},), {})
    console = Console(quiet=True)
    results = interleave.measure([case], rounds=1, seconds=0.01, console=console)
    assert "no_game" in results["broken"].error
    assert results["broken"].rates == []


@pytest.mark.learning
def test_sampling_speed_tiny_writes_table_json_and_figure(tmp_path: Path) -> None:
    out = tmp_path / "speed"
    done = run("sampling_speed.py", *TINY, f"out={out}", "groups=[2]", "workers_per_core=[1]")
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
    done = run("sampling_speed.py", *TINY, *sizes, "rounds=1", "peers=[ale]", f"out={out}")
    assert done.returncode == 0, done.stderr
    bars = [bar["what"] for bar in json.loads(Path(f"{out}.json").read_text())["bars"]]
    assert any("C++ peers (ale" in what for what in bars)


def test_peer_that_is_missing_is_noted(load: Any) -> None:
    console = Console(record=True, width=200)
    packages = {"one": "no_such_package", "two": "json"}
    found = load("peers").find_peers(packages, ("one", "two"), None, console)
    assert found == {"two": sys.executable}
    assert "one is left out" in console.export_text()


@pytest.mark.learning
def test_vector_env_speed_tiny_compares_with_the_loop_and_the_sampler(tmp_path: Path) -> None:
    out = tmp_path / "vector_env"
    done = run("vector_env_speed.py", "rounds=1", "seconds=0.05", "num_envs=4", f"out={out}")
    assert done.returncode == 0, done.stderr
    rows = json.loads(Path(f"{out}.json").read_text())["rows"]
    parts = [row["part"] for row in rows]
    assert parts == ["loop", *["vector_env"] * 2, "gymnasium", "sampler", *["vector_env"] * 2]
    assert all(row["of_reference"]["median"] > 0 for row in rows)


@pytest.mark.learning
def test_store_speed_tiny_writes_table_json_and_figure(tmp_path: Path) -> None:
    out = tmp_path / "store"
    sizes = ("rules=[adam]", "num_chunks=[3]", "learners=[1]", "work_ms=[0]", "rounds=1")
    done = run("store_speed.py", *sizes, "seconds=0.05", f"out={out}")
    assert done.returncode == 0, done.stderr
    assert "adam: push, chunks: 3 / its parts" in done.stdout
    rows = json.loads(Path(f"{out}.json").read_text())["rows"]
    assert [row["part"] for row in rows] == ["local", "parts", "push", "push", "push"]
    assert rows[2]["of_parts"]["median"] > 0 and rows[3]["wait_ms"]["median"] >= 0
    assert Path(f"{out}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.learning
@pytest.mark.parametrize("algo", ["a2c", "ppo minibatch_size=64", "dqn"])
def test_scaling_tiny_compares_learners_with_the_model(algo: str, tmp_path: Path) -> None:
    out = tmp_path / "scaling"
    sizes = ("game=catch", "learners=[2]", "num_envs=4", "what=[train]")
    done = run("scaling.py", *ONCE, *sizes, f"algos=[{algo}]", f"out={out}")
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


def test_scaling_lets_q_learning_begin_soon_unless_told_otherwise(load: Any) -> None:
    scaling, stores = load("scaling"), []
    options = scaling.Options(algos=("dqn min_steps=900", "a2c"), learners=(1,), what=("train",))
    cases = [*scaling.make_cases(options, [0], stores)]
    given = [" ".join(case.specs[0]["options"]) for case in cases]
    assert all(each.endswith(" replay_size=50000") for each in given[:4])
    assert [each.count("min_steps=") for each in given] == [1, 1, 1, 1, 0, 0, 0, 0]


def test_scaling_model_of_the_papers_machine(load: Any) -> None:
    options = {"simulator_ms": 1.0, "gpu_inference_ms": 0.5}
    options |= {"gpu_update_ms": 8.0, "gpu_all_reduce_ms": 2.0}
    rows = load("scaling_report").predict_paper(options)
    # 64 / 8 in 2 groups on 4 cores: 2 ms a step, 10 + 8 + 2 ms an iteration of 8 * 8 * 5 steps.
    assert rows[0]["sampling"] == pytest.approx(64 / 0.002)
    assert rows[0]["training"] == pytest.approx(320 / 0.020)


@pytest.mark.parametrize(
    "script",
    [
        "sampling_speed.py",
        "training_speed.py",
        "vector_env_speed.py",
        "replay_speed.py",
        "learning_speed.py",
        "store_speed.py",
        "scaling.py",
        "ga3c.py",
    ],
)
def test_benchmark_unknown_option_names_it(script: str) -> None:
    done = run(script, "round=1")
    assert done.returncode == 1
    assert "round" in done.stderr and "--help" in done.stderr


def test_training_speed_tiny_writes_json(tmp_path: Path) -> None:
    out = tmp_path / "a2c"
    done = run(
        "training_speed.py", *ONCE, "variants=['sampler.num_envs=4']", "peers=[]", f"out={out}"
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(Path(f"{out}.json").read_text())["rows"]
    assert [row["part"] for row in rows] == ["accel_rl"]
    assert rows[0]["steps_per_second"]["median"] > 0


def test_training_speed_compares_ppo_with_its_peers(load: Any) -> None:
    interleave, module = load("interleave"), load("training_speed")
    cases = module.make_cases(
        module.Options(algo="ppo", peer_threads=(1,)),
        [[0], [1]],
        dict.fromkeys(module.PACKAGES, ""),
    )
    assert len({case.name for case in cases}) == len(cases) == 3 + 3 * 2
    results = [interleave.Result(case, rates=[1.0 + i]) for i, case in enumerate(cases)]
    rows = module.summarise(results, {}, {})["rows"]
    # The fastest of sb3_a3c is the fifth, of sb3_own the seventh, of envpool the ninth.
    ratios = [rows[2][f"of_{peer}"]["median"] for peer in module.PACKAGES]
    assert ratios == pytest.approx([3 / 5, 3 / 7, 3 / 9])


def test_replay_speed_tiny_writes_table_json_and_figure(tmp_path: Path) -> None:
    out = tmp_path / "replay"
    sizes = ("size=600", "peer_size=600", "batch_size=32", "num_envs=8", "images=[36x36]")
    done = run("replay_speed.py", *ONCE, *sizes, "peers=[]", "n_steps=[3]", f"out={out}")
    assert done.returncode == 0, done.stderr
    rows = json.loads(Path(f"{out}.json").read_text())["rows"]
    assert [(row["part"], row["operation"]) for row in rows] == [
        ("accel_rl", "sample"),
        ("accel_rl", "add"),
    ]
    assert all(row["steps_per_second"]["median"] > 0 for row in rows)
    assert Path(f"{out}.png").read_bytes().startswith(b"\x89PNG")


def test_replay_speed_compares_with_the_same_operation(load: Any) -> None:
    interleave, module = load("interleave"), load("replay_speed")
    peers = dict.fromkeys(module.PACKAGES, "")
    cases = module.make_cases(module.Options(), [[0], [1]], peers, "104x80", 1)
    assert len({case.name for case in cases}) == len(cases) == 4 * 2
    rates = [12.0, 90.0, *[3.0, 9.0] * 3]
    pairs = zip(cases, rates, strict=True)
    rows = module.summarise(interleave.Result(case, rates=[rate]) for case, rate in pairs)
    assert [row["ours"]["median"] for row in rows] == [1.0, 1.0, *[4.0, 10.0] * 3]
    # 512 transitions at 12 a second.
    assert module.milliseconds(rows[0], 512)["median"] == pytest.approx(512e3 / 12)


def test_learning_speed_takes_the_rows_in_which_it_learned(load: Any, tmp_path: Path) -> None:
    module = load("learning_speed")
    shares = dict.fromkeys((*module.SHARES.values(), *module.BESIDE.values()), "0.25")
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
    row = module.summarise(module.learning_rows(path))
    # 300 steps and 60 updates in 3 s.
    assert row["steps_per_second"] == {"mean": 100.0, "low": 50.0, "high": 200.0}
    assert row["updates_per_second"] == 20.0
    assert row["hours"] == pytest.approx(50e6 / 100 / 3600)
    assert row["shares"]["learning"] == pytest.approx(0.25)


def test_learning_speed_tiny_writes_table_json_and_figure(tmp_path: Path) -> None:
    out = tmp_path / "learning"
    tiny = "dqn batch_size=4 sampler.num_envs=4 model=mlp training_intensity=1"
    sizes = ("min_steps=64", "replay_size=200", "log_interval=16", "seconds=0.05")
    done = run("learning_speed.py", f"presets=['{tiny}']", *sizes, "game=catch", f"out={out}")
    assert done.returncode == 0, done.stderr + done.stdout
    (row,) = json.loads(Path(f"{out}.json").read_text())["rows"]
    assert row["updates_per_second"] > 0 and 0 < row["shares"]["learning"] < 1
    assert Path(f"{out}.png").read_bytes().startswith(b"\x89PNG")


GA3C = ("game=catch", "networks=[mlp]", "num_envs=2", "learners=1")


def test_ga3c_grid_tiny_writes_table_json_and_figure(tmp_path: Path) -> None:
    out = tmp_path / "ga3c"
    grid = ("grid_agents=[1,2]", "grid_predictors=[1]", "grid_trainers=[2]")
    done = run("ga3c.py", "parts=[tps]", *ONCE, *GA3C, *grid, f"out={out}")
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
    done = run("ga3c.py", "parts=[pps]", "rounds=1", "seconds=0.5", *GA3C, f"out={out}")
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
    done = run("ga3c.py", parts, *ONCE, *GA3C, *tuner, *split, *batch, f"out={out}")
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
def test_ga3c_options_that_do_not_fit_are_refused(load: Any, options: str, words: str) -> None:
    given = load("options").parse(load("ga3c").Options, [options], "")
    assert words in load("ga3c").check(given)


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
    load: Any, cores: int, threads: tuple[int, int, int], has_device: bool, expected: float
) -> None:
    module = load("ga3c_speeds")
    costs = module.QueuedCosts(simulator=0.001, inference=0.002, update=0.003)
    bound = module.queued_bound(costs, threads, cores, has_device=has_device)
    assert bound == pytest.approx(expected)


def test_ga3c_speeds_are_held_against_a3c_and_the_parts(load: Any) -> None:
    interleave, module = load("interleave"), load("ga3c_speeds")

    def result(part: str, engine: str, rates: list[float], numbers: dict[str, float]) -> Any:
        row = {"part": part, "engine": engine, "network": "nips", "learners": 2, "device": "cpu"}
        row |= {"steps_per_update": 5, "learners": 2 if engine == "a3c" else 1}
        case = interleave.Case(f"{part}, {engine}", "", (), row)
        settings = {"shape": {"num_envs": 1, "horizon": 5, "num_groups": 1}, "threads": [2, 2, 4]}
        children = [numbers] * row["learners"] if part == "train" else [numbers]
        return interleave.Result(case, settings, rates, [children for _ in rates])

    costs = {"simulator": 0.001, "inference": 0.003, "update": 0.010, "pushes": 0.002}
    sums = {"predictions": 300, "prediction_batches": 100, "trainings": 4, "samples": 88}
    batches = {"inference_2": 0.004, "inference_4": 0.008, "update_20": 0.040, "update_25": 0.050}
    rows = module.summarise(
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


def test_ga3c_cpu_use_counts_children(load: Any) -> None:
    command = [sys.executable, "-c", "input(); sum(range(3 * 10**7)); print(); input()"]
    before = load("usage").cpu_seconds()
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin and child.stdout
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        used = load("usage").cpu_seconds(child.pid)
        assert load("usage").cpu_seconds() - before >= used > 0.05
        child.stdin.write("\n")


def test_ga3c_curves_give_final_score_and_area(load: Any) -> None:
    # From -1 to 1 in 10 steps, then 30 steps at 1: (10 * 0 + 30 * 1) / 40.
    curve = {"steps": [0, 10, 40], "score": [-1.0, 1.0, 1.0], "training_batch": [20] * 3}
    worse = curve | {"score": [-1.0, -1.0, -1.0]}
    row = load("ga3c_runs").summarise_curves([each | {"lag": [1] * 3} for each in (curve, worse)])
    assert row["final"] == [1.0, -1.0] and row["area"] == pytest.approx([0.75, -1.0])
    assert row["area_spread"] == pytest.approx(1.75)


def test_ga3c_tuner_found_the_last_counts_that_were_kept(load: Any) -> None:
    names = ("num_predictors", "num_trainers", "num_agents", "is_kept")
    counts = ((1, 1, 1, 1), (1, 1, 2, 1), (2, 1, 2, 0))
    windows = [dict(zip(names, map(float, each), strict=True)) for each in counts]
    assert load("ga3c_counts").last_kept(windows) == (1, 1, 2)
