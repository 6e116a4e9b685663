"""A user's script with a `VectorEnv` in it, for chaos: it survives a lost worker.

It steps until a worker is lost, says so, makes another vector environment, and fails if the lost
one has left a descriptor, a thread or shared memory in this process.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from ways import STEP_SECONDS

from accel_rl.samplers import WorkerError
from accel_rl.vector import VectorEnv


def make() -> VectorEnv:
    return VectorEnv("catch", 8, num_workers=2, step_timeout_seconds=STEP_SECONDS)


def holdings() -> tuple[list[str], int, int]:
    """What this process has open: descriptors, threads, and mappings of shared memory."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # that of the listing
            continue
    kinds = sorted(link.partition(":")[0] for link in links)
    mapped = Path("/proc/self/maps").read_text().count("memfd:accel_rl")
    return kinds, threading.active_count(), mapped


def step(env: VectorEnv, num_steps: int, rows: Path) -> None:
    env.reset(seed=0)
    for number in range(num_steps):
        env.step(np.zeros(8, np.int64))
        if number % 100 == 99:
            with rows.open("a") as file:
                file.write(f"{number}\n")


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    rows, is_lost = folder / "metrics.csv", False
    warmed = folder / "warm_up.csv"
    while not warmed.exists():  # what is loaded and made once is there from here on
        try:
            with contextlib.closing(make()) as env:
                step(env, 100, warmed)
        except WorkerError as error:
            print(f"lost: {error}", file=sys.stderr, flush=True)
            is_lost = True
    if is_lost:
        return 0
    before = holdings()
    try:
        with contextlib.closing(make()) as env:
            step(env, 2_000_000, rows)
    except WorkerError as error:
        print(f"lost: {error}", file=sys.stderr, flush=True)
    else:
        return 3
    del env
    after = holdings()
    if after != before:
        print(f"left in this process: {after}, before: {before}", file=sys.stderr)
        return 4
    with contextlib.closing(make()) as env:
        step(env, 200, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
