"""Training speed beside other libraries: `benchmarks/peers/peers.py` with fake peers."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from benchmark_scripts import ONCE, run
from rich.console import Console

from benchmarks.harness import children, interleave, peer_python
from benchmarks.peers import peer_cases, peers

CLEANRL = """
import argparse, time
from torch.utils.tensorboard import SummaryWriter
parser = argparse.ArgumentParser()
parser.add_argument("--num-envs", type=int)
parser.add_argument("--no-cuda", action="store_true")
args = parser.parse_args()
writer = SummaryWriter("runs")
writer.add_text("hyperparameters", "none")
step = 0
while True:
    step += args.num_envs
    time.sleep(0.001)
    writer.add_scalar("losses/value_loss", 0.0, step)
    writer.add_scalar("charts/SPS", 1, step)
"""
LEANRL = """
import time, tqdm, wandb
wandb.init(project="ppo_atari")
bar = tqdm.tqdm(range(1, 10**9))
for iteration in bar:
    time.sleep(0.001)
    bar.set_description("speed")
    wandb.log({"speed": 1}, step=iteration)
"""
RLPYT = {
    "envs/atari/atari_env.py": "class AtariEnv: pass\nclass AtariTrajInfo: pass\n",
    "samplers/parallel/gpu/alternating_sampler.py": """
class AlternatingSampler:
    def __init__(
        self, *, EnvCls, env_kwargs, TrajInfoCls, batch_T, batch_B, max_decorrelation_steps
    ):
        assert env_kwargs == {"game": "breakout"} and (batch_T, batch_B) == (5, 16)
""",
    "agents/pg/atari.py": """
class AtariFfAgent:
    def __init__(self, model_kwargs):
        assert model_kwargs == {
            "channels": [16, 32], "kernels": [8, 4], "strides": [4, 2], "paddings": [0, 1],
            "fc_sizes": 256,
        }
""",
    "algos/pg/a2c.py": "class A2C: pass\n",
    "runners/minibatch_rl.py": """
import time
class MinibatchRl:
    def __init__(self, *, algo, agent, sampler, n_steps, seed, affinity, log_interval_steps):
        assert len(affinity["workers_cpus"]) % 2 == 0
    def train(self):
        for itr in range(10**9):
            time.sleep(0.001)
            self.store_diagnostics(itr, [], (0.0,))
    def store_diagnostics(self, itr, traj_infos, opt_info): pass
""",
}


@pytest.fixture
def spec() -> dict[str, Any]:
    """Of a peer that trains A2C."""
    cpus = sorted(os.sched_getaffinity(0))
    (_, spec), *_ = peer_cases._peer_specs(
        peer_cases.Options(peer_threads=(1,)), "rlpyt", "a2c", "preset", len(cpus)
    )
    return spec | {"cpus": cpus, "seed": 0, "device": "cpu"}


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


@pytest.mark.learning
def test_peers_that_own_their_loop_are_measured_and_failing_ones_named(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in RLPYT.items():
        write(tmp_path, f"rlpyt/{name}", text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    given = {
        "cleanrl": {"script": write(tmp_path, "cleanrl/ppo_atari.py", CLEANRL)},
        "leanrl": {"script": write(tmp_path, "leanrl/ppo.py", LEANRL), "steps_per_iteration": 8},
        "broken": {"script": write(tmp_path, "cleanrl/broken.py", "raise ValueError('no game')")},
        "rlpyt": {},
    }
    cases = []
    for part, more in given.items():
        script = (
            "benchmarks/peers/script_training.py" if more else "benchmarks/peers/rlpyt_training.py"
        )
        arguments = ["--num-envs=8", "--no-cuda"] if part == "cleanrl" else []
        defaults = {"arguments": arguments, "steps_per_iteration": None}
        row = {"part": part, "algo": "a2c", "network": "preset", "variant": ""}
        cases.append(interleave.Case(part, script, (spec | defaults | more,), row))
    results = interleave.measure(cases, rounds=2, seconds=0.1, console=Console(quiet=True))
    broken = results.pop("broken")
    assert broken.rates == [] and "no game" in broken.error
    steps = {"cleanrl": 8, "leanrl": 8, "rlpyt": 80}
    for part, result in results.items():
        assert result.error is None, result.error
        assert len(result.rates) == 2
        assert all(0 < rate <= steps[part] / 0.001 for rate in result.rates)
    row = peers.summarise([broken], {}, {"algos": ["a2c"]}, [])["rows"][0]
    assert row["error"] == "ValueError: no game"


def test_child_that_leaves_processes_behind_is_ended_with_them(
    spec: dict[str, Any], tmp_path: Path
) -> None:
    text = """
import os, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
raise ValueError(f"worker {worker.pid}")
"""
    script = {"script": write(tmp_path, "script.py", text), "arguments": []}
    script |= {"steps_per_iteration": None}
    child = children.Child("benchmarks/peers/script_training.py", spec | script)
    try:
        with pytest.raises(children.ChildError, match="worker") as failed:
            child.wait_until_ready()
    finally:
        child.close()
    worker = Path("/proc") / str(failed.value).rpartition(" ")[2]
    for _ in range(100):
        if not worker.exists():
            break
        time.sleep(0.02)
    assert not worker.exists()


@pytest.mark.learning
def test_peers_tiny_writes_tables_without_paths_json_and_figure(tmp_path: Path) -> None:
    out = tmp_path / "peers"
    sizes = ("algos=[a2c]", "networks=[preset]", "variants=['num_envs=4']")
    done = run(
        "benchmarks/peers/peers.py",
        *ONCE,
        *sizes,
        "peers=[rlpyt]",
        f"peer_python={sys.executable}",
        f"out={out}",
    )
    assert done.returncode == 0, done.stderr
    assert "rlpyt is left out" in done.stderr and "not installed: rlpyt" in done.stdout
    report = json.loads(Path(f"{out}.json").read_text())
    assert [(row["part"], row["network"]) for row in report["rows"]] == [("accel_rl", "preset")]
    assert report["rows"][0]["steps_per_second"]["median"] > 0
    assert report["options"]["peer_python"] == "PEERS_PYTHON"
    assert "peer_python=PEERS_PYTHON" in report["machine"]["command"]
    assert Path(f"{out}.png").read_bytes().startswith(b"\x89PNG")


def test_peers_cases_are_distinct_and_compared_on_the_same_network(tmp_path: Path) -> None:
    for name in ("cleanrl", "leanrl"):
        (tmp_path / name / name).mkdir(parents=True)
    folders = {name: str(tmp_path / name) for name in ("cleanrl", "leanrl")}
    options = peer_cases.Options(peer_threads=(1,), peer_malloc=("default",), **folders)
    interpreters = dict.fromkeys(peer_cases.PEERS, "")
    cases = peer_cases.make_cases(options, "ppo", [[0], [1]], interpreters)
    assert len({case.name for case in cases}) == len(cases)
    parts = [(case.row["part"], case.row["network"]) for case in cases]
    ours = "accel_rl"
    assert parts == [
        *[(ours, "preset")] * 3,
        *[(part, "preset") for part in ("sb3", "torchrl", "rlpyt")],
        *[(ours, "nature")] * 3,
        *[(part, "nature") for part in ("sb3", "sample_factory", "cleanrl")],
        *[(part, "nature") for part in ("cleanrl_envpool", "leanrl", "plain")],
    ]
    by_part = {case.row["part"]: case.specs[0] for case in cases}
    assert by_part["cleanrl"]["script"].endswith("cleanrl/cleanrl/ppo_atari.py")
    assert "--num-steps=256" in by_part["cleanrl"]["arguments"]
    assert by_part["leanrl"]["steps_per_iteration"] == 2048
    two = dataclasses.replace(options, variants=("learners=2 serial=true",))
    case = peer_cases.make_cases(two, "a2c", [[0], [1]], {})[0]
    assert (
        case.script == "benchmarks/scaling/scaling_learner.py"
        and "learners=2" in case.specs[1]["options"]
    )
    assert [(spec["rank"], spec["what"]) for spec in case.specs] == [(0, "train"), (1, "train")]

    results = [interleave.Result(case, rates=[1.0 + i]) for i, case in enumerate(cases)]
    report = peers.summarise(results, {}, {"algos": ["ppo"]}, [])
    sb3 = report["rows"][9]  # the tenth; of ours on its network the preset is the seventh
    assert (sb3["part"], sb3["network"]) == ("sb3", "nature")
    assert sb3["ours"]["median"] == pytest.approx(7 / 10)
    assert sb3["fastest"]["median"] == pytest.approx(9 / 10)
    # Bars: our fastest is the ninth; Stable-Baselines3 is the fourth and the tenth.
    assert [bar["median"] for bar in report["bars"]] == pytest.approx([9, 9 / 4, 9 / 10])


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("algos=[a3c]", "algos has 'a3c'; it takes a2c, ppo, dqn"),
        ("peers=[sb2]", "peers has 'sb2'; it takes sb3"),
        ("networks=[own]", "networks has 'own'; it takes preset, nature"),
        ("device=gpu", "device is 'gpu'; it takes cpu or cuda"),
        ("rounds=0", "rounds and peer_threads must be at least 1"),
        ("cleanrl=/nowhere", "cleanrl is '/nowhere', which has no directory 'cleanrl'"),
        ("peer_python=/nowhere/python", "peer_python names /nowhere/python, which is no program"),
    ],
)
def test_peers_bad_option_gives_one_clear_message(
    option: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers.py", option])
    with pytest.raises(SystemExit) as ended:
        peers.main()
    message = ended.value.code if isinstance(ended.value.code, str) else capsys.readouterr().err
    assert says in message and "Traceback" not in message


def test_peer_that_is_missing_is_noted() -> None:
    console = Console(record=True, width=200)
    packages = {"one": "no_such_package", "two": "json"}
    found = peer_python.find_peers(packages, ("one", "two"), None, console)
    assert found == {"two": sys.executable}
    assert "one is left out" in console.export_text()
