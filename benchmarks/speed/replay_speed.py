"""How fast is the replay memory?

    python benchmarks/speed/replay_speed.py [key=value ...]

Measures ours beside the memories of Stable-Baselines3 (which has no priorities) and cpprb, where
these are installed: minibatches of Atari stacks with their priorities and the write-back of
new ones, adding steps, and the memory that a transition takes. One interleaved run for each size of
image and each n-step return. Prints a table and writes OUT.json.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness.interleave import Case, measure
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.peer_python import find_peers
from benchmarks.harness.report import Row, find, make_rows, ratio, ratio_cell, table_for, write

PACKAGES = {
    "sb3": "stable_baselines3",
    "cpprb": "cpprb",
}
NAMES = {
    "accel_rl": "accel_rl",
    "sb3": "Stable-Baselines3, uniform",
    "cpprb": "cpprb",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    size: int = 100_000
    """transitions in our memory; 1,000,000 images of 104x80 take 8.3 GB"""
    peer_size: int = 20_000
    """transitions in the peers' memories, of which most take four or eight times as much"""
    images: tuple[str, ...] = ("104x80", "84x84")
    """sizes of the images, each in a run of its own"""
    n_steps: tuple[int, ...] = (1, 3)
    """rewards in a return, each in a run of its own"""
    batch_size: int = 512
    """transitions in a minibatch"""
    num_envs: int = 32
    """environments that steps come from; cpprb: one"""
    horizon: int = 4
    """steps of each environment that are added to ours at a time"""
    device: str = "cpu"
    """where our memory is: cpu or cuda; the peers' are on the CPU"""
    peers: tuple[str, ...] = ("sb3", "cpprb")
    """whom to measure beside it, where installed"""
    peer_python: str | None = None
    """interpreter that has the peers, if this one has not; several separated as in PATH"""
    rounds: int = 5
    """times that everything is measured"""
    seconds: float = 1.0
    """of one measurement, after a short warm-up"""
    seed: int = 0
    """of frames and draws"""
    out: str = "build/replay_speed"
    """where to write, without the ending"""


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    cores = usable_cores()
    machine = describe_machine(cores)
    peers = find_peers(PACKAGES, options.peers, options.peer_python, progress)
    rows: list[Row] = []
    for image in options.images:
        for n_step in options.n_steps:
            cases = make_cases(options, cores, peers, image, n_step)
            settings = {"rounds": options.rounds, "seconds": options.seconds}
            rows += summarise(measure(cases, **settings, console=progress).values())
    report = {"machine": machine, "options": dataclasses.asdict(options), "rows": rows}
    write(report, options.out, tabulate)
    if any(row["error"] for row in rows):
        raise SystemExit(1)


def make_cases(
    options: Options, cores: list[list[int]], peers: dict[str, str], image: str, n_step: int
) -> list[Case]:
    """Each memory twice: to sample from, and to add to (ours of the peers' size then)."""
    width, height = (int(side) for side in reversed(image.split("x")))
    common = {
        "cpus": sorted(cpu for core in cores for cpu in core),
        "torch_threads": len(cores),
        "image": [height, width],
        "n_step": n_step,
        "malloc": "tuned",
        **{key: getattr(options, key) for key in ("batch_size", "num_envs", "horizon", "seed")},
    }
    cases = []
    for part, python in {"accel_rl": sys.executable, **peers}.items():
        for operation in ("sample", "add"):
            is_large = part == "accel_rl" and operation == "sample"
            row = {"part": part, "operation": operation, "image": image, "n_step": n_step}
            size = options.size if is_large else options.peer_size
            device = options.device if part == "accel_rl" else "cpu"
            spec = common | {"part": part, "operation": operation, "size": size, "device": device}
            name = f"{operation} {part} {image} {n_step}-step"
            cases.append(Case(name, "speed/replay_parts.py", (spec,), row, python))
    return cases


def summarise(results: Any) -> list[Row]:
    """The rows of one run; in those of peers ``ours`` is how many times as fast ours is."""
    rows, measured = make_rows(results)
    for row in measured:
        for ours in find(measured, part="accel_rl", operation=row["operation"]):
            row["ours"] = ratio(ours["rates"], row["rates"])
    return rows


def milliseconds(row: Row, batch_size: int) -> dict[str, float]:
    """A spread of the time of one minibatch, from that of transitions a second."""
    rates = row["steps_per_second"]
    return {key: 1e3 * batch_size / rate for key, rate in rates.items()}


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Prints a line for each memory in each run."""
    batch_size = report["options"]["batch_size"]
    columns = ("image", "n", "size", "ms", "range", "ours", "added/s", "ours", "bytes")
    table = table_for(report, f"Minibatches of {batch_size} with write-back", columns)
    for row in find(report["rows"], operation="sample"):
        same = {key: row[key] for key in ("part", "image", "n_step")}
        shown = [NAMES[row["part"]], row["image"], str(row["n_step"])]
        if "steps_per_second" not in row:
            table.add_row(*shown, "failed")
            continue
        taken = milliseconds(row, batch_size)
        shown += [f"{row['settings']['size']:,}", f"{taken['median']:.1f}"]
        shown += [f"{taken['high']:.1f}-{taken['low']:.1f}", ratio_cell(row.get("ours"))]
        for added in find(report["rows"], operation="add", **same):
            if "steps_per_second" in added:
                median = added["steps_per_second"]["median"]
                shown += [f"{median:,.0f}", ratio_cell(added.get("ours"))]
        table.add_row(*shown, f"{row['settings']['bytes_a_transition']:,}")
    console.print(table)
    console.print("ours: how many times as fast accel_rl's memory is.", highlight=False)


if __name__ == "__main__":
    main()
