"""How fast A2C, PPO and DQN train, beside other libraries.

    python benchmarks/peers/peers.py [peer_python=PYTHON[:PYTHON ...]] [cleanrl=DIR] [key=value ...]

All in agent steps a second, inference and updates included, on the same cores, the same game and
the same batches: those of our presets, PPO's 8 x 256 steps for 4 epochs in 4 minibatches, A2C's
16 x 5, DQN's 32 every 4 steps. ``algos=[ppo_mujoco,sac]`` are measured on a MuJoCo task instead:
PPO with 8 x 256 steps for 10 epochs in 32 minibatches, SAC with an update of 256 each step of one
environment. Each algorithm is one interleaved run. Peers:

    sb3              Stable-Baselines3: A2C, PPO, DQN, SAC
    torchrl          TorchRL's collector, losses and replay: A2C, PPO, DQN
    cleanrl, cleanrl_envpool   ppo_atari, dqn_atari, ppo_continuous_action,
                     sac_continuous_action; ppo_atari_envpool, in a checkout
    leanrl           ppo_atari_envpool_torchcompile, in a checkout

They are compared on our preset's network (A3C-Net; for DQN the paper's larger one) and images of
104 x 80 where a peer takes a network, and otherwise on their own, of Mnih et al. 2015, and 84 x 84.
Each is measured with each setting of threads and allocator that may suit it, and compared at its
fastest. A peer that is not installed is left out, and one that fails is named with its error.
Prints tables and writes OUT.json.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness.children import CHECKOUT
from benchmarks.harness.interleave import Result, measure
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.peer_python import find_peers, interpreters
from benchmarks.harness.report import (
    fastest,
    find,
    make_rows,
    ratio,
    ratio_cell,
    spread_cells,
    write,
)
from benchmarks.peers.peer_cases import CONTROL, PEERS, Options, make_cases


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    cores = usable_cores()
    machine = describe_machine(cores)
    found = installed(options, progress)
    results: list[Result] = []
    for algo in options.algos:
        cases = make_cases(options, algo, cores, found)
        settings = {"rounds": options.rounds, "seconds": options.seconds}
        results += measure(cases, **settings, console=progress).values()

    report = summarise(results, machine, dataclasses.asdict(options))
    report = without_paths(report, options)
    write(report, options.out, tabulate)
    if any(row["error"] for row in find(report["rows"], part="accel_rl")):
        raise SystemExit(1)


def installed(options: Options, console: Console) -> dict[str, str]:
    """The interpreter of each peer that can be measured; the others are noted."""
    chosen = []
    for peer in options.peers:
        collection = PEERS[peer].collection
        if collection is None or getattr(options, collection):
            chosen.append(peer)
        else:
            text = f"{peer} is left out, since {collection}=DIR does not say where its scripts are"
            console.print(text, highlight=False)
    packages = {peer: each.packages for peer, each in PEERS.items()}
    return find_peers(packages, chosen, options.peer_python, console)


def summarise(
    results: list[Result], machine: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """One JSON object as `report` has it.

    Of a peer, ``ours`` is what our preset makes on the same network, divided by it, and ``fastest``
    what the fastest of our variants there does, round by round.
    """
    rows, measured = make_rows(results)
    for row in rows:
        if row["error"]:
            lines = row["error"].strip().splitlines()  # the reason, and what the peer said last
            row["error"] = lines[0] if "no answer" in lines[0] else lines[-1]
        same = find(measured, part="accel_rl", algo=row["algo"], network=row["network"])
        if row["part"] != "accel_rl" and row in measured and same:
            for preset in find(same, variant=""):
                row["ours"] = ratio(preset["rates"], row["rates"])
            row["fastest"] = ratio(fastest(same)["rates"], row["rates"])  # type: ignore[index]
    return {"machine": machine, "options": options, "rows": rows}


def without_paths(report: dict[str, Any], options: Options) -> dict[str, Any]:
    """The report with names in place of this machine's paths."""
    names = {options.peer_python: "PEERS_PYTHON"}
    names |= {options.cleanrl: "CLEANRL", options.leanrl: "LEANRL"}
    names |= dict.fromkeys(interpreters(options.peer_python), "PEERS_PYTHON")
    names |= {str(CHECKOUT): "."}
    text = json.dumps(report)
    for path, name in names.items():
        if path:
            text = text.replace(json.dumps(path)[1:-1], name)
    return dict(json.loads(text))


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Prints of each algorithm the rows."""
    for algo in report["options"]["algos"]:
        _tabulate(report, algo, console)


def _tabulate(report: dict[str, Any], algo: str, console: Console) -> None:
    options, machine = report["options"], report["machine"]
    rows = find(report["rows"], algo=algo)
    where = options["task" if algo in CONTROL else "game"]
    title = f"{algo.upper()} on {where} ({options['device']}), steps a second"
    title += f", {len(machine['cores_used'])} cores of {machine['cpu']}"
    title += f", load average {machine['load_average'][0]:.1f}"
    table = Table(title=title)
    for column in ("network", "", "steps/s", "range", "preset / it", "fastest / it"):
        table.add_column(column, justify="right" if "/" in column else "left")
    for row in rows:
        name = f"{row['part']} {row['variant']}".strip()
        if "steps_per_second" not in row:
            table.add_row(row["network"], name, "failed")
            continue
        steps = row["steps_per_second"]
        ratios = [ratio_cell(row.get(key)) for key in ("ours", "fastest")]
        table.add_row(row["network"], name, *spread_cells(steps), *ratios)
    console.print(table)


if __name__ == "__main__":
    main()
