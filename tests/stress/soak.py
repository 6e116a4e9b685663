"""Trains for long at full speed, loses workers on the way, and looks whether anything grows.

    python tests/stress/soak.py [key=value ...]

A worker is killed every ``kill_seconds`` and replaced. Every few seconds the memory of each
process, its descriptors and threads are read from /proc, and the steps and the processor time of
the run. The memory that is judged is the proportional set size without pages of files. The kernel
divides the pages of a library among all programs that have loaded it, so a process seems to shrink
while another program of the same environment runs.
The warm-up, a fifth of the time, is longer than the run takes to its first learning curve and
checkpoint. The time after it has three thirds.
Asserts: the median memory of each kind of process differs by at most ``memory_percent`` among the
thirds and by ``growth_percent`` from the second to the last, no kind has more descriptors or
threads, and steps per second of processor time have not fallen by more than ``speed_percent``.
The processor time is that of the process that learns and orders the steps: a worker is too young
to have become slower, and its start would count. Other programs on the machine change the steps per
second a lot, and those per second of processor time a little. Writes OUT.json. Linux only.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse

PROGRAM = """
import sys
from accel_rl.__main__ import main
from accel_rl.samplers import pool
pool.MAX_RESTARTS = 1_000_000
sys.exit(main())
"""
WARM_UP_SHARE = 0.2
"""of the time"""
KINDS = ("run", "worker")
"""kinds of processes"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run for how long."""

    env: str = "catch"
    """the environment"""
    minutes: float = 60.0
    """how long"""
    options: str = "algo=a2c num_envs=16 num_workers=2 learners=1"
    """further options of training"""
    kill_seconds: float = 20.0
    """between two kills of a worker; 0: none"""
    look_seconds: float = 5.0
    """between two looks at the processes"""
    memory_percent: float = 5.0
    """by which memory may differ among the thirds"""
    growth_percent: float = 1.0
    """by which memory may grow from the second third to the last"""
    speed_percent: float = 10.0
    """by which the steps per second of processor time may fall"""
    out: str = "build/soak"
    """file of the results, without its suffix"""


class Look(NamedTuple):
    """A process at a time, in seconds since the start.

    ``memory``: in MB, without pages of files.
    """

    seconds: float
    kind: str
    memory: float
    descriptors: int
    threads: int


class Pace(NamedTuple):
    """What the run has done at a time, in seconds since the start.

    ``processor_seconds``: of the process that learns.
    """

    seconds: float
    steps: int
    processor_seconds: float


class Seen(NamedTuple):
    """All that was seen of a run. ``warm_up``: its seconds."""

    looks: list[Look]
    paces: list[Pace]
    warm_up: float


def main() -> int:
    options = parse(Options, sys.argv[1:], __doc__)
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        seen, kills, code = run(options, Path(folder))
    failures = [] if code in (0, 143) else [f"training ended with exit code {code}"]
    failures += judge(seen, options)
    report = {
        "machine": describe_machine(usable_cores()),
        "options": asdict(options),
        "kills": kills,
        "looks": len(seen.looks),
        "warm_up_seconds": round(seen.warm_up, 1),
        "steps": seen.paces[-1].steps if seen.paces else 0,
        "thirds": {
            "memory_mb": {kind: thirds(seen, kind, "memory") for kind in KINDS},
            "descriptors": {kind: thirds(seen, kind, "descriptors") for kind in KINDS},
            "threads": {kind: thirds(seen, kind, "threads") for kind in KINDS},
            "steps_per_processor_second": speeds(seen),
        },
        "failures": failures,
    }
    Path(f"{out}.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({"kills": kills, **report["thirds"]}))
    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"written: {out}.json")
    return 1 if failures else 0


def run(options: Options, folder: Path) -> tuple[Seen, int, int]:
    """Train, kill and look; return what was seen, the number of kills, and the exit code."""
    run_dir = folder / "run"
    arguments = [
        *(f"env={options.env}", *options.options.split(), f"run_dir={run_dir}"),
        *("total_steps=100000000000", "on_worker_failure=restart"),
        *("log_interval=1024", "checkpoint_interval=51200"),
    ]
    rng, looks, paces = random.Random(0), list[Look](), list[Pace]()
    kills = 0
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "train", *arguments],
            cwd=Path(__file__).resolve().parents[2],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            while process.poll() is None and not (run_dir / "metrics.csv").exists():
                time.sleep(0.1)
            start = time.monotonic()
            next_kill = start + options.kill_seconds
            while process.poll() is None and time.monotonic() - start < 60 * options.minutes:
                seconds = round(time.monotonic() - start, 1)
                with suppress(psutil.Error):
                    used = sum(psutil.Process(process.pid).cpu_times()[:2])
                    paces.append(Pace(seconds, steps_of(run_dir), round(used, 2)))
                    looks += look(process.pid, seconds)
                time.sleep(options.look_seconds)
                if options.kill_seconds and time.monotonic() >= next_kill:
                    next_kill += options.kill_seconds
                    kills += kill_worker(process.pid, rng)
            process.terminate()
            code = process.wait(120)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code not in (0, 143):
        print((folder / "output").read_text(errors="replace")[-2000:])
    return Seen(looks, paces, 60 * WARM_UP_SHARE * options.minutes), kills, code


def steps_of(run_dir: Path) -> int:
    """The steps in the last row of metrics; 0 if there is none."""
    with open(run_dir / "metrics.csv", "rb") as file:
        names = file.readline().decode().strip().split(",")
        file.seek(max(file.tell(), file.seek(0, os.SEEK_END) - 10_000))
        lines = file.read().decode().split("\n")[:-1]  # the last one may be half written
    values = lines[-1].split(",") if lines else []
    return int(float(values[names.index("steps")])) if len(values) == len(names) else 0


def workers_of(pid: int) -> list[psutil.Process]:
    """The worker processes that the run ``pid`` has now."""
    found = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.Error):
            if "accel_rl.samplers.worker" in child.cmdline():
                found.append(child)
    return found


def kill_worker(pid: int, rng: random.Random) -> int:
    """Kill a worker; return how many were killed."""
    with suppress(psutil.Error):
        if workers := workers_of(pid):
            rng.choice(workers).kill()
            return 1
    return 0


def look(pid: int, seconds: float) -> Iterator[Look]:
    """Yield a look at the run and each of its workers that has been there for three seconds."""
    yield _look_at(psutil.Process(pid), "run", seconds)
    for worker in workers_of(pid):
        with suppress(psutil.Error):
            if time.time() - worker.create_time() > 3:
                yield _look_at(worker, "worker", seconds)


def _look_at(process: psutil.Process, kind: str, seconds: float) -> Look:
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError as error:
        raise psutil.NoSuchProcess(process.pid) from error
    kilobytes = {name: int(size) for name, size, _ in (line.split() for line in lines)}
    memory = kilobytes["Pss_Anon:"] + kilobytes["Pss_Shmem:"]
    return Look(
        seconds,
        kind,
        round(memory * 1024 / 1e6, 2),
        process.num_fds(),
        process.num_threads(),
    )


def bounds_of(seen: Seen) -> list[tuple[float, float]]:
    """Begin and end of the three thirds of the time after the warm-up."""
    end = seen.looks[-1].seconds
    third = (end - seen.warm_up) / 3
    return list(pairwise(seen.warm_up + third * n for n in range(4)))


def thirds(seen: Seen, kind: str, name: str) -> list[float]:
    """Medians in the three thirds; empty if one has no look."""
    if not seen.looks:
        return []
    looks = [each for each in seen.looks if each.kind == kind]
    parts = [
        [float(getattr(each, name)) for each in looks if low <= each.seconds <= high]
        for low, high in bounds_of(seen)
    ]
    return [round(median(part), 2) for part in parts] if all(parts) else []


def speeds(seen: Seen) -> list[float]:
    """Steps per second of processor time in the thirds; empty if one has none."""
    found = []
    for low, high in bounds_of(seen) if seen.looks else []:
        part = [pace for pace in seen.paces if low <= pace.seconds <= high]
        if len(part) < 2 or part[-1].steps == part[0].steps:
            return []
        spent = part[-1].processor_seconds - part[0].processor_seconds
        found.append(round((part[-1].steps - part[0].steps) / max(spent, 1e-9), 1))
    return found


def judge(seen: Seen, options: Options) -> list[str]:
    """What has grown, or become slower; empty if nothing has."""
    failures = []
    for kind in KINDS:
        memory = thirds(seen, kind, "memory")
        if not memory:
            failures.append(f"too few looks at kind {kind}")
            continue
        told = f"memory of {kind}: {memory} MB in the three thirds"
        if max(memory) > (1 + options.memory_percent / 100) * min(memory):
            failures.append(told)
        elif memory[2] > (1 + options.growth_percent / 100) * memory[1]:
            failures.append(f"{told}; it grew in the last")
        for name in ("descriptors", "threads"):
            counts = thirds(seen, kind, name)
            if counts[2] > counts[1] or counts[1] > counts[0]:
                failures.append(f"{name} of {kind}: {counts} in the three thirds")
    speed = speeds(seen)
    if not speed:
        failures.append("too few steps")
    elif speed[2] < (1 - options.speed_percent / 100) * speed[0]:
        failures.append(f"speed: {speed} steps per second of processor time in the three thirds")
    return failures


if __name__ == "__main__":
    sys.exit(main())
