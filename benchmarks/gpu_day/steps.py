"""What each of the two calls runs: programs with time limits, at full or at tiny sizes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CALLS = {"first": 540.0, "second": 240.0}
"""with the seconds that each may take"""
_GRAPHS = ("graphs", "overlap", "ga3c", "runs")  # what tests of these show comes first


@dataclass(frozen=True)
class Step:
    """One program. ``name``: also of its log. ``seconds``: it may take."""

    name: str
    seconds: float
    command: tuple[str, ...]


def make_steps(call: str, work: Path, *, is_dry: bool, leanrl: str | None = None) -> list[Step]:
    """Return the steps of a call.

    Args:
        call: One of `CALLS`.
        work: Folder for the reports.
        is_dry: Tiny sizes on the CPU.
        leanrl: Folder of LeanRL's scripts; None leaves its PPO out.
    """
    make = {"first": _first, "second": _second}[call]
    return list(make(work, f"device={'cpu' if is_dry else 'cuda'}", is_dry, leanrl))


def _first(work: Path, device: str, is_dry: bool, leanrl: str | None) -> Iterator[Step]:
    facts = "nvidia-smi; lscpu | head -25; free -g | head -2; df -h /dev/shm; ulimit -l"
    yield Step(
        "facts", 10, ("bash", "-c", f"{facts}; {sys.executable} -m accel_rl.system.topology")
    )
    sizes = ["game=catch", "seconds=0.1", "cases=[line,a2c_16]"] if is_dry else []
    yield _script("first", 230, "gpu_day/first.py", device, *sizes, f"out={work}/first.jsonl")
    if is_dry:
        return
    paths = [str(path) for path in sorted((ROOT / "tests" / "gpu").glob("test_*.py"))]
    graphs = [path for path in paths if any(f"test_{name}_" in path for name in _GRAPHS)]
    yield _tests("tests_graphs", 110, graphs)
    yield _tests("tests_others", 110, [path for path in paths if path not in graphs])
    ga3c = ["engines=[a3c,ga3c]", "networks=[nips]", "rounds=1", "seconds=3", f"out={work}/ga3c"]
    yield _script("ga3c", 60, "ga3c/ga3c_speeds.py", device, *ga3c)


def _second(work: Path, device: str, is_dry: bool, leanrl: str | None) -> Iterator[Step]:
    if not is_dry:
        peers = ["peers=[envpool,ale]", "cases=[envpool,ale]", "envs_per_core=[8]", "rounds=1"]
        peers += ["seconds=2", f"out={work}/peers_sampling"]
        yield _script("peers", 60, "speed/speed.py", device, *peers)
    if leanrl is not None:
        given = ["algos=[ppo]", "peers=[leanrl]", f"leanrl={leanrl}", "rounds=1", "seconds=6"]
        yield _script("leanrl", 60, "peers/peers.py", device, *given, f"out={work}/peers_ppo")
    limit = ["limit_seconds=2"] * is_dry
    pong = ["game=pong", "aim=18", *limit, f"out={work}/until_pong"]
    yield _script("pong", 220, "gpu_day/until.py", device, *pong)


def _script(name: str, seconds: float, script: str, *given: str) -> Step:
    return Step(name, seconds, (sys.executable, str(ROOT / "benchmarks" / script), *given))


def _tests(name: str, seconds: float, paths: list[str]) -> Step:
    options = ("-q", "-m", "gpu", "-n", "8", "-W", "default", "-p", "no:cacheprovider")
    return Step(name, seconds, (sys.executable, "-m", "pytest", *options, *paths))
