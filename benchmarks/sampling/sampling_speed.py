"""How fast experience is sampled, and how fast it could be: Fig. 1b of arXiv:1803.02811, on any
machine.

In one interleaved run on the pinned cores, in agent steps a second of all cores together:

  emulator           (a) four `act` calls a step, no observation; the game's resets, or saved starts
  environment        (b) the same with observations: our environment in a plain loop on each core
  sampler            (c) the parallel sampler with random actions
  sampler, network   (d) with A3C-Net in the loop
  inference          the network alone, on batches as large as in (d)
  envpool, ale, gymnasium, sb3, torchrl   other vector environments, where installed, without and
                     with A3C-Net

Every figure is a median over the rounds with its range, and a ratio of (a) with saved starts and of
(b), taken round by round. The lead over ale-py has an interval over the starts. Prints a table and
writes OUT.json and OUT.png.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness.interleave import measure
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.peer_python import find_peers
from benchmarks.harness.report import draw, summarise, tabulate, write
from benchmarks.sampling.peers_sampling import PACKAGES
from benchmarks.sampling.sampling_cases import Options, make_cases


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    cores = usable_cores()
    cores = cores[: options.num_cores or len(cores)]
    machine = describe_machine(cores)
    peers = find_peers(PACKAGES, options.peers, options.peer_python, progress)
    cases = make_cases(options, cores, peers)
    minutes = options.starts * len(cases) * (options.rounds * (options.seconds + 0.5) + 4) / 60
    progress.print(
        f"{len(cases)} cases, {options.starts} starts, {options.rounds} rounds: about "
        f"{minutes:.0f} minutes"
    )
    with neighbour(cores[0][0], options.busy):
        results = measure(
            cases,
            rounds=options.rounds,
            seconds=options.seconds,
            console=progress,
            starts=options.starts,
        )

    report = summarise(results.values(), machine, dataclasses.asdict(options))
    write(report, options.out, tabulate, draw)
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
        "while True:\n"
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


if __name__ == "__main__":
    main()
