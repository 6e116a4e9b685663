"""How fast experience is sampled, how fast it could be, and how fast our training is.

    python benchmarks/speed/speed.py [kinds=[atari,vector,batch,train]] [key=value ...]

All cases are measured in one interleaved run on the pinned cores, in agent steps a second of all
cores together:

    atari   after Fig. 1b of arXiv:1803.02811: the bare emulator (four `act` calls a step, no
            observation, saved starts), our environment in a plain loop on each core, the parallel
            sampler with random actions and with A3C-Net, the network alone on batches as large;
            other vector environments, where installed (``peers``)
    vector  `VectorEnv` beside a plain loop and Gymnasium's AsyncVectorEnv, and beside the sampler
    batch   simulators that are batches in our workers, beside the same one by one, bare loops over
            them, and EnvPool's own loop
    train   our training, put together from options

Every figure is a median over the rounds with its range; ratios are taken in each round and have
95 % bootstrap intervals over the starts. ``other=DIR`` measures another checkout by turns with this
one: `git worktree add ../before COMMIT` makes one. Prints tables and writes OUT.json.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness import report
from benchmarks.harness.interleave import Result, measure, with_other
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.peer_python import find_peers
from benchmarks.harness.report import find, ratio, spread
from benchmarks.speed.cases import Options, make_cases
from benchmarks.speed.peers_sampling import PACKAGES


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    cores = [core[:1] for core in usable_cores()]  # one hyperthread of each
    cores = cores[: options.num_cores or len(cores)]
    machine = describe_machine(cores)
    peers = find_peers(PACKAGES, options.peers, options.peer_python, progress)
    cases = with_other(make_cases(options, cores, peers), options.other)
    minutes = options.starts * len(cases) * (options.rounds * (options.seconds + 0.5) + 4) / 60
    progress.print(f"{len(cases)} cases, about {minutes:.0f} minutes")
    with neighbour(cores[0][0], options.busy):
        results = measure(
            cases,
            rounds=options.rounds,
            seconds=options.seconds,
            console=progress,
            starts=options.starts,
        )
    given = dataclasses.asdict(options)
    report.write(summarise(results.values(), machine, given), options.out, tabulate)
    if any(result.error for result in results.values()):
        raise SystemExit(1)


@contextlib.contextmanager
def neighbour(cpu: int, busy: float) -> Iterator[None]:
    """Within, one more process computes on ``cpu`` for the share ``busy`` of every 0.1 s."""
    if not busy:
        yield
        return
    code = (
        "import os, time\n"
        f"os.sched_setaffinity(0, [{cpu}])\n"
        "parent = os.getppid()\n"
        "while os.getppid() == parent:\n"
        f"    end = time.perf_counter() + {0.1 * busy}\n"
        "    while time.perf_counter() < end: pass\n"
        f"    time.sleep({0.1 * (1 - busy)})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def summarise(
    results: Iterable[Result], machine: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """The report. Cases that failed keep their row, with the error and without figures.

    ``of_emulator_a_worker_core``: a core that serves a GPU simulates nothing. ``of_parts``: of
    what simulators and network, each alone, allow.
    """
    rows, measured = report.make_rows(results)
    report.compare(measured)
    num_cores = len(machine["cores_used"])
    emulator = find(measured, part="emulator")
    environment = find(measured, part="environment")
    for row in find(measured, kind="atari", part="sampler"):
        row["worker_cores"] = row["settings"].get("worker_cores") or num_cores
        if emulator:
            of_emulator = ratio(row["rates"], emulator[0]["rates"])
            share = num_cores / row["worker_cores"]
            row["of_emulator_a_worker_core"] = {k: v * share for k, v in of_emulator.items()}
        alone = find(measured, part="inference", batch=row["batch"])
        if row["network"] and alone and environment and options["device"] == "cpu":
            threads = options["torch_threads"] or num_cores
            simulated, inferred = environment[0]["rates"], alone[0]["rates"]
            allowed = report.parts_allow(num_cores, simulated, inferred, threads)
            row["parts_allow"] = spread(allowed)
            row["of_parts"] = ratio(row["rates"], allowed)
    return {"machine": machine, "options": options, "rows": rows}


def tabulate(found: dict[str, Any], console: Console) -> None:
    """Prints the rows and the ratios."""
    columns = ("steps/s", "range", "of emulator, a worker core", "of parts")
    table = report.table_for(found, "Steps a second", columns)
    for row in found["rows"]:
        if "steps_per_second" not in row:
            table.add_row(row["name"], "failed")
            continue
        keys = ("of_emulator_a_worker_core", "of_parts")
        ratios = (report.ratio_cell(row.get(key)) for key in keys)
        table.add_row(row["name"], *report.spread_cells(row["steps_per_second"]), *ratios)
    console.print(table)
    report.tabulate_ratios(found["rows"], console)


if __name__ == "__main__":
    main()
