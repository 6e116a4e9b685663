"""What each call runs: programs with time limits, at full or at tiny sizes."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CALLS = ("truth", "speed", "peers", "deep")
EMULATED_GPU = ROOT / "build" / "emulated_gpu" / "device.so"


@dataclass(frozen=True)
class Step:
    """One program."""

    name: str
    """also of its log"""
    seconds: float
    """it may take"""
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """variables beside those of this process"""


def make_steps(call: str, out: Path, *, is_dry: bool, leanrl: str | None = None) -> list[Step]:
    """Return the steps of a call.

    Args:
        call: One of `CALLS`.
        out: Folder for the reports.
        is_dry: Tiny sizes on the CPU, and tests on the emulated GPU if torch has no CUDA.
        leanrl: Folder of LeanRL's scripts; None leaves its PPO out.
    """
    make = {"truth": _truth, "speed": _speed, "peers": _peers, "deep": _deep}[call]
    steps = make(out, is_dry)
    if call == "peers" and leanrl is not None:
        given = ["algos=[ppo]", "peers=[leanrl]", f"leanrl={leanrl}", "rounds=2", "seconds=4"]
        given += [f"device={_device(is_dry)}", f"out={out}/peers_ppo_gpu"]
        steps.append(_script("leanrl", 90, "peers/peers.py", *given))
    return steps


def _device(is_dry: bool) -> str:
    return "cpu" if is_dry else "cuda"


def _python(name: str, seconds: float, *arguments: str, **environment: str) -> Step:
    return Step(name, seconds, (sys.executable, *arguments), environment)


def _script(name: str, seconds: float, script: str, *arguments: str) -> Step:
    """A step that runs a script of the benchmarks."""
    return _python(name, seconds, str(ROOT / "benchmarks" / script), *arguments)


def _truth(out: Path, is_dry: bool) -> list[Step]:
    """Do the parts do on CUDA what the CPU does?"""
    facts = (
        "uname -r; nvidia-smi; nvidia-smi topo -m; lscpu | head -25; free -g | head -2\n"
        "df -h /dev/shm /tmp; ulimit -l; ulimit -n; which gcc g++ nvcc\n"
        f"{sys.executable} -m accel_rl.topology"
    )
    probe = [f"device={_device(is_dry)}", f"scale={0.01 if is_dry else 1.0}"]
    steps = [
        Step("facts", 20, ("bash", "-c", facts)),
        _script("probe", 60, "gpu_day/probe.py", *probe, f"out={out}/probe_gpu"),
    ]
    pytest = ["-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider"]
    if is_dry:
        return [*steps, *_dry_tests([*pytest, "tests/gpu/test_replay_cuda.py"])]
    pytest.append("tests/gpu")
    if importlib.util.find_spec("xdist"):
        pytest += ["--numprocesses", "6"]
    return [
        *steps,
        _python("tests", 270, *pytest, "--timeout", "120", "-k", "not captured"),
        _python("tests_captured", 190, *pytest, "--timeout", "180", "-k", "captured"),
    ]


def _dry_tests(pytest: list[str]) -> list[Step]:
    """One file of tests on the emulated GPU: all of them take minutes."""
    paths = [str(ROOT / "tests" / "emulated_gpu"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        "EMULATED_GPU": str(EMULATED_GPU),
        "EMULATED_GPUS": "2",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    build = _python("emulated_gpu", 300, "tests/emulated_gpu/build.py", str(EMULATED_GPU))
    return [build, _python("tests", 90, *pytest, **environment)]


def _speed(out: Path, is_dry: bool) -> list[Step]:
    """How fast do the presets sample and learn?"""
    common = [f"device={_device(is_dry)}"]
    game = ["game=catch"] * is_dry  # whose network is small
    learning = [*common, *game, f"seconds={0.1 if is_dry else 6}"]
    learning.append(f"log_interval={64 if is_dry else 20_480}")
    presets = "a2c,'a2c num_envs=120',ppo,'ppo num_envs=64','ppo num_envs=256',pqn"
    presets += ",'a2c num_envs=120 capture=off','ppo num_envs=64 capture=off'"
    full = 1_000 if is_dry else 1_000_000
    sizes = [f"min_steps={full}", f"replay_size={full}"]
    cat_dqn = [*common, *game, *sizes, f"seconds={0.1 if is_dry else 90}"]
    cat_dqn.append(f"log_interval={64 if is_dry else 40_960}")
    envs = 2 if is_dry else 8
    sampling = [*common, f"envs_per_core=[{envs}]", f"bar_envs_per_core={envs}", "groups=[2]"]
    sampling += ["workers_per_core=[1]", "hyperthreads=[1]", "torch_threads=[1]"]
    sampling += ["cases=[emulator,environment,sampler]"]
    times = ["rounds=1", "seconds=0.05", "num_cores=1"] if is_dry else ["rounds=2", "seconds=1"]
    return [
        _script(
            "learning",
            210,
            "training/learning_speed.py",
            *learning,
            f"presets=[{presets}]",
            f"out={out}/learning_gpu",
        ),
        _script(
            "sampling",
            120,
            "sampling/sampling_speed.py",
            *sampling,
            *times,
            f"out={out}/sampling_gpu",
        ),
        _script(
            "cat_dqn",
            250,
            "training/learning_speed.py",
            *cat_dqn,
            "presets=['cat_dqn batch_size=2048']",
            f"out={out}/learning_cat_dqn_gpu",
        ),
    ]


def _peers(out: Path, is_dry: bool) -> list[Step]:
    """How fast are GA3C and CPU A3C? With ``leanrl``, `make_steps` adds LeanRL."""
    small = "nips" if is_dry else "nips,ga3c_large_stride1"
    ga3c = [f"device={_device(is_dry)}", "parts=[pps]", "engines=[a3c,ga3c]"]
    ga3c += [f"networks=[{small}]", f"out={out}/ga3c_gpu"]
    ga3c += ["rounds=1", "seconds=1", "num_envs=4"] if is_dry else ["rounds=1", "seconds=3"]
    return [_script("ga3c", 300, "ga3c/ga3c.py", *ga3c)]


def _deep(out: Path, is_dry: bool) -> list[Step]:
    """How soon does it play well? Breakout has all the time that Pong leaves."""
    common = [f"device={_device(is_dry)}"] + ["limit_seconds=2"] * is_dry
    return [
        _script(
            "pong",
            125,
            "gpu_day/until.py",
            "game=pong",
            "aim=18",
            *common,
            f"out={out}/until_pong_gpu",
        ),
        _script(
            "breakout",
            520,
            "gpu_day/until.py",
            "game=breakout",
            "aim=400",
            *common,
            f"out={out}/until_breakout_gpu",
        ),
    ]
