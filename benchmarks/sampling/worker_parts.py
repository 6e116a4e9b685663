"""Where a step's time goes within a worker, from start to start, beside a plain loop.

    python benchmarks/sampling/worker_parts.py [key=value ...]

Each start begins two processes at the same time. On the first core one worker of a parallel sampler
steps 32 environments; on the second core a plain loop steps as many of the same environments, with
nothing around it. Microseconds a step of both, median over the starts with the lowest and highest:

  emulator   the `act` calls
  screen     reading the screens
  frame      comparing, grey levels, maximum, reduction, the stack
  rest       what else the environment's `step` does
  engine     what the worker does beside `step` (the loop: picking actions and rows)

Variants: pages=huge has the allocator ask for huge pages (only where the kernel gives them on
request), affinity=off leaves the worker to the kernel. Prints a table and writes OUT.json.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.envs import AtariConfig
from accel_rl.envs.atari import AtariEnv
from accel_rl.envs.base import Array, EnvSpec, StepResult
from benchmarks.harness.children import Child, read_spec, serve
from benchmarks.harness.machine import describe_machine
from benchmarks.harness.options import parse
from benchmarks.harness.report import spread, write_json

PARTS = ("emulator", "screen", "frame", "rest")
ENVS = 32


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    game: str = "breakout"
    """Atari game"""
    starts: int = 10
    """times that all processes are started"""
    seconds: float = 1.5
    """of each measurement"""
    pages: tuple[str, ...] = ("normal", "huge")
    """pages of the heap: normal, or huge as far as the kernel gives them on request"""
    affinity: tuple[str, ...] = ("auto", "off")
    """whether the worker is pinned: auto or off"""
    out: str = "benchmarks/results/worker_parts"
    """where to write, without the ending"""


class TimedAtari(AtariEnv):
    """The environment, with the microseconds of its parts in ``info``."""

    def __init__(self, game: str) -> None:
        super().__init__(game, AtariConfig())
        self._spent = [0.0, 0.0, 0.0]

    @property
    def spec(self) -> EnvSpec:
        import dataclasses

        return dataclasses.replace(super().spec, info_keys=PARTS)

    def _load(self, emulator_seed: int) -> None:
        super()._load(emulator_seed)
        self._act = self._timed(self._act, 0)
        self._screen._get_screen = self._timed(self._screen._get_screen, 1)
        self._screen.hold = self._timed(self._screen.hold, 2)  # type: ignore[method-assign]
        self._screen.push = self._timed(self._screen.push, 2)  # type: ignore[method-assign]

    def _timed(self, call: Callable[..., Any], part: int) -> Callable[..., Any]:
        spent = self._spent

        def timed(*arguments: Any) -> Any:
            began = perf_counter()
            result = call(*arguments)
            spent[part] += perf_counter() - began
            return result

        return timed

    def step(self, action: int, out: Array) -> StepResult:
        self._spent[:] = 0.0, 0.0, 0.0
        began = perf_counter()
        result = super().step(action, out)
        whole = perf_counter() - began
        emulator, screen, frame = self._spent
        parts = (emulator, screen, frame - screen, whole - emulator - frame)
        return result._replace(info=tuple(1e6 * part for part in parts))


def measure_child() -> None:
    """A child: the sampler with one worker, or the plain loop, by the specification."""
    import numpy as np

    from accel_rl.samplers import ParallelSampler, SamplerConfig, SerialSampler

    spec = read_spec()
    config = SamplerConfig(num_envs=ENVS, horizon=5, num_groups=2, affinity=spec["affinity"])

    def factory() -> TimedAtari:
        return TimedAtari(spec["game"])

    kind = ParallelSampler if spec["is_worker"] else SerialSampler
    totals = np.zeros(len(PARTS) + 1)  # of the parts in us, and the steps
    with kind(factory, config=config, seed=spec["seed"]) as sampler:
        busy = [0.0, 0.0]  # the worker's so far, and when they were taken last

        def policy(step: Any) -> Any:
            return (step.uniform * sampler.env_spec.num_actions).astype(np.int64)

        def advance() -> int:
            rollout = sampler.collect(policy)
            totals[:-1] += np.nansum(rollout.info, axis=(0, 1))
            totals[-1] += rollout.action.size
            return int(rollout.action.size)

        def take_numbers() -> dict[str, float]:
            *sums, steps = totals.tolist()
            totals[:] = 0
            busy[0], busy[1] = busy[1], sampler.times.simulating
            numbers = {
                name: total / max(steps, 1.0) for name, total in zip(PARTS, sums, strict=True)
            }
            numbers["engine"] = 1e6 * (busy[1] - busy[0]) / max(steps, 1.0) - sum(numbers.values())
            return numbers

        serve(advance, {}, take_numbers)


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    cpus = sorted(os.sched_getaffinity(0))[:2]
    assert len(cpus) == 2, "this needs two cores"
    rows = []
    variants = [(pages, affinity) for pages in options.pages for affinity in options.affinity]
    taken: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for start in range(options.starts):
        for pages, affinity in variants:
            progress.print(f"start {start + 1}/{options.starts}: pages={pages} affinity={affinity}")
            for name, numbers in measure_start(options, pages, affinity, cpus, start).items():
                taken.setdefault((pages, affinity, name), []).append(numbers)
    for (pages, affinity, name), each in taken.items():
        parts = {part: spread([numbers[part] for numbers in each]) for part in each[0]}
        rows.append({"pages": pages, "affinity": affinity, "process": name, "us": parts})
        rows[-1]["starts"] = each
    report = {"machine": describe_machine([[cpu] for cpu in cpus]), "options": asdict(options)}
    tabulate(rows, Console(width=None if sys.stdout.isatty() else 140))
    write_json(report | {"rows": rows}, Path(f"{options.out}.json"))
    print(f"wrote {options.out}.json")


def measure_start(
    options: Options, pages: str, affinity: str, cpus: list[int], start: int
) -> dict[str, dict[str, float]]:
    """Microseconds a step of the worker and of the loop, measured at the same time."""
    if pages == "huge":
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    else:
        os.environ.pop("GLIBC_TUNABLES", None)
    base = {"game": options.game, "affinity": affinity, "seed": start, "child": True}
    children = {
        name: Child(
            "sampling/worker_parts.py", base | {"cpus": [cpu], "is_worker": name == "worker"}
        )
        for name, cpu in zip(("worker", "loop"), cpus, strict=True)
    }
    try:
        for child in children.values():
            child.wait_until_ready()
        for child in children.values():
            child.ask(options.seconds)
        taken = {}
        for name, child in children.items():
            rate = child.answer(options.seconds)
            taken[name] = child.numbers | {"step": 1e6 / rate}
        return taken
    finally:
        for child in children.values():
            child.close()


def tabulate(rows: list[dict[str, Any]], console: Console) -> None:
    """Prints a row for each variant and process."""
    names = list(rows[0]["us"])
    table = Table("", *names, title="microseconds a step, median (lowest-highest) of the starts")
    for row in rows:
        cells = [
            f"{each['median']:.1f} ({each['low']:.0f}-{each['high']:.0f})"
            for each in (row["us"][name] for name in names)
        ]
        table.add_row(f"{row['process']}, pages {row['pages']}, {row['affinity']}", *cells)
    console.print(table)


if __name__ == "__main__":
    measure_child() if sys.argv[1:2] and sys.argv[1].startswith("{") else main()
