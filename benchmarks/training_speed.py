"""How fast A2C and PPO train, beside Stable-Baselines3 and a plain script over EnvPool.

    python benchmarks/training_speed.py [algo=a2c|ppo] [key=value ...]

All in one interleaved run on the same cores, in agent steps a second, inference and updates
included. Peers that are not installed are left out:

    sb3_a3c   Stable-Baselines3 with A3C-Net's layers and our rollout
    sb3_own   the same with its own network and rollout (PPO only)
    envpool   PPO as a plain script, EnvPool and PyTorch

Each is measured with each setting of threads and allocator that may suit it, and compared at its
fastest. Prints a table and writes OUT.json.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from interleave import Case, Result, measure
from machine import describe_machine
from options import parse
from peers import find_peers
from report import fastest, find, make_rows, ratio, ratio_cell, write_json
from rich.console import Console
from rich.table import Table

from accel_rl.topology import available_cpus, physical_cores

PACKAGES = {
    "sb3_a3c": "stable_baselines3",
    "sb3_own": "stable_baselines3",
    "envpool": "envpool, torch",
}
PEERS = {"a2c": ("sb3_a3c",), "ppo": ("sb3_a3c", "sb3_own", "envpool")}
STEPS_BARS = {"a2c": 3_000.0, "ppo": 1_400.0}
RATIO_BARS = {("a2c", "sb3_a3c"): 3.4, ("ppo", "sb3_a3c"): 2.5, ("ppo", "sb3_own"): 3.0}
VARIANTS = {
    "a2c": ("", "precision=bfloat16"),
    "ppo": ("", "num_envs=64", "num_envs=64 precision=bfloat16"),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    algo: Literal["a2c", "ppo"] = "a2c"
    """whose preset is trained, and which peers stand beside it"""
    game: str = "breakout"
    """Atari game"""
    device: str = "cpu"
    """where the network is: cpu or cuda"""
    variants: tuple[str, ...] | None = None
    """of our training: options as on its command line, several separated by blanks; null: the
    preset, and what makes it faster"""
    peers: tuple[str, ...] = ("sb3_a3c", "sb3_own", "envpool")
    """who stands beside it, where installed"""
    peer_python: str | None = None
    """interpreter that has the peers, if this one has not"""
    peer_threads: tuple[int, ...] = ()
    """of torch in the peers; empty: 1, and one a core"""
    rounds: int = 5
    """times that everything is measured"""
    seconds: float = 5.0
    """of one measurement, after a short warm-up, and at least one rollout"""
    seed: int = 0
    """of games, actions and weights"""
    out: str | None = None
    """where to write, without the ending; null: benchmarks/results/ALGO_speed"""


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    cores = [list(core.cpus) for core in physical_cores(available_cpus())]
    machine = describe_machine(cores)
    chosen = [peer for peer in PEERS[options.algo] if peer in options.peers]
    cases = make_cases(options, cores, find_peers(PACKAGES, chosen, options.peer_python, progress))
    results = measure(cases, rounds=options.rounds, seconds=options.seconds, console=progress)

    report = summarise(list(results.values()), machine, dataclasses.asdict(options))
    tabulate(report, Console(width=None if sys.stdout.isatty() else 140))
    out = Path(f"{options.out or f'benchmarks/results/{options.algo}_speed'}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(report, out)
    print(f"wrote {out}")
    if any(result.error for result in results.values()):
        raise SystemExit(1)


def make_cases(options: Options, cores: list[list[int]], peers: dict[str, str]) -> list[Case]:
    """Our variants, then every setting of the peers."""
    cpus = sorted(cpu for core in cores for cpu in core)
    common = {"cpus": cpus, "seed": options.seed, "device": options.device}
    variants = VARIANTS[options.algo] if options.variants is None else options.variants
    cases = []
    for variant in variants:
        training = [f"env={options.game}", f"device={options.device}", f"seed={options.seed}"]
        training += [f"algo={options.algo}", *variant.split()]
        spec = common | {"options": training, "malloc": "tuned"}
        row = {"part": "accel_rl", "variant": variant}
        cases.append(Case(f"accel_rl {variant}".strip(), "our_training.py", (spec,), row))
    threads = options.peer_threads or sorted({1, len(cores)})
    return [*cases, *_peer_cases(options, threads, peers, common)]


def _peer_cases(
    options: Options, threads: Any, peers: dict[str, str], common: dict[str, Any]
) -> Iterator[Case]:
    for peer, python in peers.items():
        script = "plain_ppo.py" if peer == "envpool" else "sb3_training.py"
        more = {"algo": options.algo, "game": options.game, "network": peer.rpartition("_")[2]}
        for number in threads:
            for malloc in ("default", "tuned"):
                row = {"part": peer, "variant": f"{number} threads, malloc {malloc}"}
                spec = common | more | {"torch_threads": number, "malloc": malloc}
                yield Case(f"{peer} {row['variant']}", script, (spec,), row, python)


def summarise(
    results: list[Result], machine: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """One JSON object as `report` has it; ``of_PEER`` is round by round, of its fastest setting."""
    rows, measured = make_rows(results)
    for peer in PACKAGES:
        reference = fastest(find(measured, part=peer))
        if reference is not None:
            for row in measured:
                row[f"of_{peer}"] = ratio(row["rates"], reference["rates"])
    return {"machine": machine, "options": options, "rows": rows}


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Prints the rows, and how the fastest of ours stands to the bars."""
    options, machine = report["options"], report["machine"]
    algo, cores = options["algo"], len(machine["cores_used"])
    peers = [peer for peer in PACKAGES if any(f"of_{peer}" in row for row in report["rows"])]
    title = f"{algo.upper()} on {options['game']}, steps a second on {cores} cores"
    table = Table(title=f"{title} of {machine['cpu']}")
    for column in ("", "steps/s", "range", *(f"of {peer}" for peer in peers)):
        table.add_column(column, justify="left" if not column else "right")
    for row in report["rows"]:
        steps = row.get("steps_per_second")
        if steps is None:
            table.add_row(row["name"], "failed")
            continue
        span = f"{steps['low']:,.0f}-{steps['high']:,.0f}"
        ratios = (ratio_cell(row.get(f"of_{peer}")) for peer in peers)
        table.add_row(row["name"], f"{steps['median']:,.0f}", span, *ratios)
    console.print(table)
    best = fastest(row for row in find(report["rows"], part="accel_rl") if "rates" in row)
    if best is None:
        return
    steps = best["steps_per_second"]["median"]
    text = f"{best['name']}: {steps:,.0f} steps/s, bar {STEPS_BARS[algo]:,.0f}"
    console.print(text, highlight=False)
    for peer in peers:
        bar = RATIO_BARS.get((algo, peer))
        words = f", bar {bar}" if bar else ""
        text = f"{best[f'of_{peer}']['median']:.2f} times {peer}{words}"
        console.print(text, highlight=False)


if __name__ == "__main__":
    main()
