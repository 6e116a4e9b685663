"""How fast small tasks are learned on one thread, beside Stable-Baselines3 and CleanRL.

    python benchmarks/peers/small_speed.py [peer_python=PYTHON] [cleanrl=DIR] [key=value ...]

Whole calls of training, environments made and results written, imports not: by turns, one of ours
and one of the peer's, in steps a second and in steps a second of processor time. Both have the same
batches, epochs, losses and network. Prints a table, and writes OUT.json with 95 % bootstrap
intervals of the median ratios.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness.interleave import Case, Result, measure
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.peer_python import find_peers
from benchmarks.harness.report import Row, find, interval, make_rows, ratio, table_for, write

OURS = "device=cpu learners=1 num_workers=0 num_groups=1 tracker=[]"
PPO = "algo=ppo_mujoco normalize_observation=false normalize_reward=false clip_value=false"
A2C = "algo=a2c normalize_advantage=false"
DQN = (
    "algo=dqn num_envs=1 horizon=4 training_intensity=8 batch_size=32 learning_starts=1000 "
    "buffer_size=100000 target_update_interval=10000 n_step=1"
)
REPLAY = {"learning_starts": 1000, "buffer_size": 100_000}
SB3: dict[str, tuple[int, str, str, int, dict[str, Any]]] = {
    "ppo_1": (20_480, PPO + " num_envs=1 horizon=2048", "PPO", 1, {"n_steps": 2048}),
    "ppo_8": (40_960, PPO + " num_envs=8 horizon=256", "PPO", 8, {"n_steps": 256}),
    "a2c_1": (20_000, A2C + " num_envs=1 horizon=5", "A2C", 1, {"n_steps": 5}),
    "a2c_8": (60_000, A2C + " num_envs=8 horizon=5", "A2C", 8, {"n_steps": 5}),
    "dqn": (15_000, DQN, "DQN", 1, REPLAY | {"policy_kwargs": {"net_arch": [128, 128]}}),
    "sac": (
        2_500,
        "algo=sac num_envs=1 learning_starts=1000 buffer_size=100000",
        "SAC",
        1,
        REPLAY,
    ),
}
"""Steps of a call, our options, and the class, environments and arguments of the peer."""
PQN = "pqn"
PQN_OPTIONS = "algo=pqn num_envs=4 horizon=128 minibatch_size=128 epochs=4 q_lambda=0.65"
PQN_STEPS = 51_200


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    tasks: tuple[str, ...] = (*SB3, PQN)
    """which of them; the number is that of environments"""
    peer_python: str | None = None
    """interpreter that has the peers, if this one has not"""
    cleanrl: str | None = None
    """directory of a checkout of CleanRL, for PQN"""
    rounds: int = 15
    """pairs"""
    steps: int | None = None
    """of each call; null: as many as take some seconds"""
    other: str | None = None
    """another checkout of accel_rl, to measure in place of the peers"""
    out: str = "build/small_speed"
    """where to write, without the ending"""


def main() -> None:
    """Measures one task after the other, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    cores = usable_cores()
    peers: dict[str, str] = {}
    if options.other is None:
        packages = {"sb3": "stable_baselines3", "cleanrl": "torch, tyro, gymnasium, tensorboard"}
        peers = find_peers(packages, list(packages), options.peer_python, progress)
    rows: list[Row] = []
    for task in options.tasks:
        cases = make_cases(task, options, peers, [cpu for core in cores for cpu in core])
        found = measure(cases, rounds=options.rounds, seconds=15.0, console=progress)
        rows += summarise(list(found.values()))
    given = dataclasses.asdict(options)
    given |= {name: name.upper() for name in ("peer_python", "cleanrl", "other") if given[name]}
    report = {"machine": describe_machine(cores), "options": given, "rows": rows}
    write(report, options.out, tabulate)


def make_cases(task: str, options: Options, peers: dict[str, str], cpus: list[int]) -> list[Case]:
    """Ours and the other's; one alone where the other is not there."""
    common: dict[str, Any] = {"cpus": sorted(cpus), "torch_threads": 1}
    peer: dict[str, Any] = {}
    if task == PQN:
        steps, words, library = PQN_STEPS, PQN_OPTIONS, "cleanrl"
        if options.cleanrl:
            script = Path(options.cleanrl).resolve() / "cleanrl" / "pqn.py"
            peer = {"script": str(script), "arguments": ["--no-cuda"]}
    else:
        steps, words, algorithm, num_envs, arguments = SB3[task]
        library = "sb3"
        env = "Pendulum-v1" if task == "sac" else "CartPole-v1"
        peer = {"algorithm": algorithm, "env": env, "num_envs": num_envs, "arguments": arguments}
    env, steps = peer.get("env", "CartPole-v1"), options.steps or steps
    ours = common | {"library": "accel_rl", "malloc": "tuned", "steps": steps}
    ours["options"] = [f"env={env}", *words.split(), *OURS.split()]
    script = "peers/whole_call.py"
    row = {"task": task, "options": " ".join(ours["options"])}
    cases = [Case(f"{task}: accel_rl", script, (ours,), row | {"part": "accel_rl"})]
    if options.other is not None:
        other = Path(options.other).resolve()
        cases.append(
            Case(f"{task}: other", script, (ours,), row | {"part": "other"}, checkout=other)
        )
    elif peer and library in peers:
        theirs = common | peer | {"library": library, "steps": steps}
        row |= {"part": library, "options": peer.get("arguments")}
        cases.append(Case(f"{task}: {library}", script, (theirs,), row, peers[library]))
    return cases


def summarise(results: list[Result]) -> list[Row]:
    """A row for each, ours with ratios to the other's: by the clock, and by processor time."""
    rows, measured = make_rows(results)
    for row, result in zip(rows, results, strict=True):
        pairs = zip(result.rates, result.numbers, strict=True)
        row["clock"] = row.pop("rates")
        row["processor"] = [_steps(result) / numbers[0]["cpu_seconds"] for _, numbers in pairs]
    if len(measured) == 2:
        ours, theirs = measured
        for name in ("clock", "processor"):
            both = ours[name], theirs[name]
            ours[f"{name}_ratio"] = ratio(*both) | {"interval": interval(*both, 1)}
    return rows


def _steps(result: Result) -> int:
    steps: int = result.case.specs[0]["steps"]
    return steps


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Prints a line for each task."""
    columns = ("ours, steps/s", "peer", "times (95 %)", "processor time (95 %)")
    table = table_for(report, "Small tasks on one thread", columns)
    for task in report["options"]["tasks"]:
        rows = find(report["rows"], task=task)
        speeds = [
            f"{row['steps_per_second']['median']:,.0f}" if "steps_per_second" in row else "failed"
            for row in rows
        ]
        known = [rows[0][name] for name in ("clock_ratio", "processor_ratio") if name in rows[0]]
        ratios = [
            "{:.2f} ({:.2f} to {:.2f})".format(each["median"], *each["interval"]) for each in known
        ]
        table.add_row(task, *[*speeds, ""][:2], *ratios)
    console.print(table)


if __name__ == "__main__":
    main()
