"""How fast A2C trains with 16 environments and A3C-Net, beside Stable-Baselines3's A2C.

Both in one interleaved run on the same cores, in agent steps a second, inference and updates
included. Stable-Baselines3 is measured with each setting of threads and allocator that may suit it,
and compared at its fastest. Prints a table and writes OUT.json.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interleave import Case, Result, measure
from machine import describe_machine
from options import parse
from report import fastest, ratio, ratio_cell, spread, write_json
from rich.console import Console
from rich.table import Table

from accel_rl.topology import available_cpus, physical_cores

STEPS_BAR = 3_000.0
RATIO_BAR = 3.4


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    game: str = "breakout"
    """Atari game"""
    num_envs: int = 16
    """environments"""
    horizon: int = 5
    """steps of each environment in one update"""
    device: str = "cpu"
    """where the network is: cpu or cuda"""
    variants: tuple[str, ...] = ("", "precision=bfloat16")
    """of our training: options as on its command line, several separated by blanks"""
    sb3: bool = True
    """also Stable-Baselines3, where it is installed"""
    sb3_python: str | None = None
    """interpreter that has Stable-Baselines3, if this one has not"""
    rounds: int = 5
    """times that everything is measured"""
    seconds: float = 5.0
    """of one measurement, after a short warm-up"""
    seed: int = 0
    """of games, actions and weights"""
    out: str = "benchmarks/results/a2c_speed"
    """where to write, without the ending"""


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    cores = [list(core.cpus) for core in physical_cores(available_cpus())]
    machine = describe_machine(cores)
    python = find_sb3(options) if options.sb3 else None
    if options.sb3 and python is None:
        progress.print("Stable-Baselines3 is left out, since it is not installed; see sb3_python")
    cases = make_cases(options, cores, python)
    results = measure(cases, rounds=options.rounds, seconds=options.seconds, console=progress)

    report = summarise(list(results.values()), machine, dataclasses.asdict(options))
    tabulate(report, Console(width=None if sys.stdout.isatty() else 140))
    out = Path(f"{options.out}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(report, out)
    print(f"wrote {out}")
    if any(result.error for result in results.values()):
        raise SystemExit(1)


def find_sb3(options: Options) -> str | None:
    """The interpreter to run Stable-Baselines3 in, if there is one."""
    for python in filter(None, (sys.executable, options.sb3_python)):
        command = [python, "-c", "import stable_baselines3"]
        if subprocess.run(command, capture_output=True).returncode == 0:
            return python
    return None


def make_cases(options: Options, cores: list[list[int]], sb3_python: str | None) -> list[Case]:
    """Our variants, then Stable-Baselines3's settings."""
    cpus = sorted(cpu for core in cores for cpu in core)
    common = {"cpus": cpus, "seed": options.seed, "device": options.device}
    cases = []
    for variant in options.variants:
        training = [
            f"env={options.game}",
            "model=a3c",
            f"sampler.num_envs={options.num_envs}",
            f"sampler.horizon={options.horizon}",
            f"device={options.device}",
            f"seed={options.seed}",
            *variant.split(),
        ]
        spec = common | {"part": "accel_rl", "options": training, "malloc": "tuned"}
        row = {"part": "accel_rl", "variant": variant}
        cases.append(Case(f"accel_rl {variant}".strip(), "a2c_training.py", (spec,), row))
    for threads in sorted({1, len(cores)}) if sb3_python else ():
        for malloc in ("default", "tuned"):
            row = {"part": "sb3", "variant": f"{threads} threads, malloc {malloc}"}
            spec = common | {"part": "sb3", "torch_threads": threads, "malloc": malloc}
            spec |= {key: getattr(options, key) for key in ("game", "num_envs", "horizon")}
            name = f"sb3 {row['variant']}"
            cases.append(Case(name, "a2c_training.py", (spec,), row, str(sb3_python)))
    return cases


def summarise(
    results: list[Result], machine: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """One JSON object as `report` has it; ``of_sb3`` is round by round, of its fastest setting."""
    rows = [
        {"name": result.case.name, **result.case.row}
        | {"settings": result.settings, "rates": result.rates, "error": result.error}
        for result in results
    ]
    measured = [row for row in rows if row["rates"] and not row["error"]]
    for row in measured:
        row["steps_per_second"] = spread(row["rates"])
    reference = fastest(row for row in measured if row["part"] == "sb3")
    for row in measured:
        if reference is not None:
            row["of_sb3"] = ratio(row["rates"], reference["rates"])
    return {"machine": machine, "options": options, "rows": rows}


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Prints the rows, and how the fastest of ours stands to the bars."""
    options, machine = report["options"], report["machine"]
    cores = len(machine["cores_used"])
    about = f"A2C on {options['game']}, {options['num_envs']} environments"
    table = Table(title=f"{about}, steps a second on {cores} cores of {machine['cpu']}")
    for column in ("", "steps/s", "range", "of Stable-Baselines3"):
        table.add_column(column, justify="left" if not column else "right")
    for row in report["rows"]:
        steps = row.get("steps_per_second")
        if steps is None:
            table.add_row(row["name"], "failed")
            continue
        span = f"{steps['low']:,.0f}-{steps['high']:,.0f}"
        table.add_row(row["name"], f"{steps['median']:,.0f}", span, ratio_cell(row.get("of_sb3")))
    console.print(table)
    best = fastest(
        row for row in report["rows"] if row["part"] == "accel_rl" and "steps_per_second" in row
    )
    if best is None:
        return
    steps = best["steps_per_second"]["median"]
    console.print(f"{best['name']}: {steps:,.0f} steps/s, bar {STEPS_BAR:,.0f}", highlight=False)
    if "of_sb3" in best:
        console.print(
            f"{best['of_sb3']['median']:.2f} times Stable-Baselines3, bar {RATIO_BAR}",
            highlight=False,
        )


if __name__ == "__main__":
    main()
