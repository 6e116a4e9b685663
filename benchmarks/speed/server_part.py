"""What the server's part of a step costs: `WorkerPool.send` and `recv` of a group whose workers are
awake and answer at once.

No worker runs: this process answers in their place, between the two calls, in the shared memory.

    python benchmarks/speed/server_part.py [out=NAME]
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.envs.catch import Catch
from accel_rl.samplers import SamplerConfig, WorkerPool
from accel_rl.samplers.layout import assign_columns
from benchmarks.harness.machine import describe_machine
from benchmarks.harness.report import write_json

WORKERS = (2, 16, 64, 128)
STEPS, ROUNDS = 2_000, 9


def main() -> None:
    """Measure all numbers of workers by turns; print a table and write the rows."""
    options = dict(argument.split("=", 1) for argument in sys.argv[1:])
    pools = {number: make_pool(number) for number in WORKERS}
    rounds = [{number: measure(pool) for number, pool in pools.items()} for _ in range(ROUNDS)]
    rows = []
    for number in WORKERS:
        times = sorted(each[number] for each in rounds)
        median = statistics.median(times)
        print(f"{number:4d} workers: {median:5.1f} us a step ({times[0]:.1f} to {times[-1]:.1f})")
        rows.append({"workers": number, "microseconds": times})
    if "out" in options:
        result = {"machine": describe_machine([[0]]), "steps": STEPS, "rows": rows}
        write_json(result, Path(f"{options['out']}.json"))


def make_pool(num_workers: int) -> WorkerPool:
    """A pool with two groups, whose workers are never started."""
    config = SamplerConfig(num_envs=2 * num_workers, num_workers=num_workers)
    slices = assign_columns(config, num_workers)
    spec = config.rollout_spec(Catch.spec)
    pool = WorkerPool(Catch, spec, config, 0, [()] * num_workers, slices)
    pool._shared.is_awake[:] = 1
    return pool


def measure(pool: WorkerPool) -> float:
    """Return the microseconds of one `send` and one `recv`."""
    arrays, workers = pool._shared, pool._workers
    seconds = 0.0
    for step in range(STEPS):
        group = step % 2
        began = perf_counter()
        pool.send((group,), (step % 5,))
        seconds += perf_counter() - began
        arrays.done[:, group] = arrays.sequence[group]
        countdown: Any = workers.countdown[group]
        for _ in range(pool.num_workers - 1):
            os.eventfd_read(countdown)
        os.eventfd_write(workers.ready[group], 1)
        began = perf_counter()
        pool.recv((group,))
        seconds += perf_counter() - began
    return 1e6 * seconds / STEPS


if __name__ == "__main__":
    main()
