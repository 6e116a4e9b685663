"""An iteration's update with one torch thread and with one for each CPU, by turns.

For networks of dense layers, from the smallest updates on, and one for images; alone, and with
``busy`` processes beside it that only compute. As training has it: ``GOMP_SPINCOUNT=3000`` in the
environment.

    GOMP_SPINCOUNT=3000 python benchmarks/training/update_threads.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.cli.parse import parse_arguments
from accel_rl.topology import available_cpus
from accel_rl.training.torch_setup import tune_malloc
from benchmarks.harness.machine import describe_machine
from benchmarks.harness.options import parse
from benchmarks.harness.report import ratio, spread, write_json
from benchmarks.scaling.speed_parts import PartsOfOne

# By growing updates: parameters times samples.
CASES = {
    "dqn 64": "algo=double_dqn env=CartPole-v1 batch_size=64 min_steps=1000 replay_size=20000",
    "a2c 80": "env=CartPole-v1",
    "ppo 256": "algo=ppo env=CartPole-v1 num_envs=8 horizon=64 minibatch_size=256",
    "dqn 512": "algo=dqn env=catch batch_size=512 min_steps=1000 replay_size=20000",
    "ppo 1024": "algo=ppo env=CartPole-v1 num_envs=64 horizon=64 minibatch_size=1024",
    "a2c 1280": "env=CartPole-v1 num_envs=64 horizon=20",
    "dqn 2048": "algo=dqn env=catch batch_size=2048 min_steps=1000 replay_size=20000",
    "ppo 4096": "algo=ppo env=CartPole-v1 num_envs=64 horizon=64 minibatch_size=4096",
    "a2c 80, images": "env=breakout model=a3c",
}


@dataclass(frozen=True)
class ThreadOptions:
    """What to measure."""

    cases: list[str] = field(default_factory=lambda: list(CASES))
    """algorithms, samples of an update"""
    busy: list[int] = field(default_factory=lambda: [0, 1])
    """processes beside it that only compute"""
    seconds: float = 4.0
    """for each case, at least; no case has fewer than 7 rounds"""
    out: str = ""
    """file of the results, without its ending; empty: none"""


def main() -> None:
    """Measures, prints milliseconds, and writes them where asked."""
    options = parse(ThreadOptions, sys.argv[1:], __doc__)
    tune_malloc()
    rows = []
    for busy in options.busy:
        with competitors(busy):
            for case in options.cases:
                rows.append({"case": case, "busy": busy, **measure(case, options.seconds)})
                print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if options.out:
        machine = describe_machine([])
        path = Path(options.out).with_suffix(".json")
        write_json({"machine": machine, "options": asdict(options), "rows": rows}, path)


@contextmanager
def competitors(number: int) -> Iterator[None]:
    """So many processes compute meanwhile."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(case: str, seconds: float) -> dict[str, Any]:
    """Spreads of an iteration's milliseconds, and of the ratio round by round."""
    counts = (1, len(available_cpus()))
    times: dict[int, list[float]] = {count: [] for count in counts}
    with PartsOfOne(parse_arguments(CASES[case].split()), 1) as one:
        server, learner = one.parts.server, one.parts.learner

        def update(count: int) -> float:
            torch.set_num_threads(count)
            began = perf_counter()
            learner.update(server.finish(), 0.0)
            return 1000 * (perf_counter() - began)

        for count in counts:
            update(count)
        end = perf_counter() + seconds
        while perf_counter() < end or len(times[1]) < 7:
            for count in counts if len(times[1]) % 2 else counts[::-1]:
                times[count].append(update(count))
        flat = one.parts.exchange.parameters.parameter
    alone, shared = times.values()
    figures = {"one": spread(alone), "all": spread(shared), "all_to_one": ratio(shared, alone)}
    return {"parameters": flat.numel(), "rounds": len(alone), **figures}


if __name__ == "__main__":
    main()
