"""Small tasks: what each preset learns as it is, beside Stable-Baselines3 at the same steps.

    python -m benchmarks.tables.small_tasks peer_python=PYTHON cells=[ppo,a2c] seeds=[0,1,2]

Each cell trains once a seed on one thread, plays 30 games with the last parameters and the most
probable action, and adds a row to ``benchmarks/results/small_tasks.csv``; a row that is there is
not made again. ``page=true`` only writes the table into docs/results.md. Stable-Baselines3 has the
arguments of `CELLS`: its defaults, or those of its zoo, which are named there.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from accel_rl.runs.files import write_whole
from benchmarks.harness.options import parse
from benchmarks.tables.rows import put

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "benchmarks" / "results" / "small_tasks.csv"
OURS, PEER = "accel_rl", "Stable-Baselines3"
CARTPOLE_DQN = (
    "'DQN', learning_rate=2.3e-3, batch_size=64, buffer_size=100_000, learning_starts=1_000, "
    "target_update_interval=10, train_freq=256, gradient_steps=128, exploration_fraction=0.16, "
    "exploration_final_eps=0.04, policy_kwargs=dict(net_arch=[256, 256])"
)
LANDER_DQN = (
    "'DQN', learning_rate=6.3e-4, batch_size=128, buffer_size=50_000, learning_starts=0, "
    "target_update_interval=250, train_freq=4, gradient_steps=-1, exploration_fraction=0.12, "
    "exploration_final_eps=0.1, policy_kwargs=dict(net_arch=[256, 256])"
)
CELLS = {  # algorithm, environment: steps, the score asked for, what Stable-Baselines3 is given
    ("ppo", "CartPole-v1"): (50_000, 475, "'PPO'"),
    ("dqn", "CartPole-v1"): (50_000, 475, CARTPOLE_DQN),  # of the zoo
    ("a2c", "CartPole-v1"): (100_000, 475, "'A2C'"),
    ("ppo", "Acrobot-v1"): (200_000, -90, "'PPO'"),
    ("a2c", "Acrobot-v1"): (200_000, -95, "'A2C'"),
    ("ppo", "LunarLander-v3"): (1_000_000, 200, "'PPO'"),
    ("dqn", "LunarLander-v3"): (200_000, 150, LANDER_DQN),  # of the zoo
    ("sac", "Pendulum-v1"): (20_000, -180, "'SAC', learning_rate=1e-3"),  # of the zoo
    ("ppo", "Pendulum-v1"): (200_000, -250, "'PPO'"),
    ("ppo", "MountainCarContinuous-v0"): (100_000, None, "'PPO'"),
    # A mapping of a number and a kind, both to be answered; and a grid with walls as action masks.
    ("ppo", "tests.helpers.control_envs:Aim"): (30_000, 0.8, None),
    ("ppo", "tests.helpers.control_envs:MaskedGrid"): (120_000, 0.65, None),
    ("ga3c", "CartPole-v1"): (200_000, 400, None),
    **{
        (name, "CartPole-v1"): (200_000, 400, None)
        for name in "double_dqn cat_dqn rainbow async_dqn r2d2 pqn paac a3c appo impala".split()
    },
}
THEIR = """
import sys, torch
torch.set_num_threads(1)
import stable_baselines3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
def make(name, **more):
    num_envs = 8 if name == "A2C" else 1
    return getattr(stable_baselines3, name)(
        "MlpPolicy", make_vec_env(env, num_envs, seed=seed), seed=seed, device="cpu", **more
    )
env, steps, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
kind, more = eval(f"(lambda kind, **more: (kind, more))({sys.argv[4]})")
model = make(kind, **more).learn(steps)
print(evaluate_policy(model, make_vec_env(env, 1, seed=1_000 + seed), 30)[0])
"""


class Row(NamedTuple):
    """One training: mean return of 30 games; seconds with the start of Python and these games."""

    algorithm: str
    env: str
    steps: int
    library: str
    seed: int
    score: float
    wall_seconds: float
    processor_seconds: float


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which trainings to make."""

    cells: tuple[str, ...] = ()
    """Algorithms to train; []: all."""
    envs: tuple[str, ...] = ()
    """Environments; []: all."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of each."""
    peer_python: str | None = None
    """Interpreter that has stable_baselines3; none: it is left out."""
    page: bool = False
    """Only write the table."""


def read() -> list[Row]:
    """The rows that are there."""
    if not ROWS.exists():
        return []
    with ROWS.open() as file:
        rows = list(csv.reader(file))[1:]
    return [Row(a, e, int(n), lib, int(s), *map(float, rest)) for a, e, n, lib, s, *rest in rows]


def train(algorithm: str, env: str, steps: int, seed: int) -> float:
    """Train a preset of ours as it is, and return its greedy score."""
    name = env.replace(":", "-")
    run = ROOT / "build" / "small_tasks" / f"{algorithm}-{name}-{seed}-{os.getpid()}"
    command = [sys.executable, "-m", "accel_rl"]
    options = [f"algo={algorithm}", f"env={env}", f"total_steps={steps}", f"seed={seed}"]
    call([*command, "train", *options, f"run_dir={run}", "tracker=[]"])
    call([*command, "evaluate", str(run), "num_episodes=30", "greedy=true", "num_workers=0"])
    return float(json.loads((run / "evaluation.json").read_text())["mean"])


def call(command: list[str]) -> str:
    """Run a command on one thread, and return what it prints."""
    single = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=single, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:6])} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def measure(options: Options) -> None:
    """Make the trainings that have no row yet, libraries by turns."""
    for seed in options.seeds:
        for (algorithm, env), (steps, _, peer) in CELLS.items():
            if (options.cells and algorithm not in options.cells) or (
                options.envs and env not in options.envs
            ):
                continue
            for library in (OURS, PEER):
                key = (algorithm, env, steps, library, seed)
                rows = read()
                if any(row[:5] == key for row in rows):
                    continue
                if library == PEER and (peer is None or options.peer_python is None):
                    continue
                start, before = time.perf_counter(), processor()
                if library == OURS:
                    score = train(algorithm, env, steps, seed)
                else:
                    program = [str(options.peer_python), "-c", THEIR, env, str(steps), str(seed)]
                    score = float(call([*program, str(peer)]).split()[-1])
                row = Row(*key, score, time.perf_counter() - start, processor() - before)
                write([*rows, row])
                print(*row, flush=True)


def processor() -> float:
    """Processor seconds of all children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write(rows: list[Row]) -> None:
    """Keep the rows."""
    lines = [",".join(Row._fields)]
    for row in rows:
        lines.append(",".join([*map(str, row[:5]), *(f"{number:.2f}" for number in row[5:])]))
    write_whole(ROWS, ("\n".join(lines) + "\n").encode())


def table() -> str:
    """Scores of each seed, and the least wall and processor seconds, of both libraries."""
    cells = defaultdict(list)
    for row in sorted(read(), key=lambda row: row.seed):
        cells[row.algorithm, row.env, row.library].append(row)
    lines = [
        "| preset | environment | steps | asked for | accel_rl | s | CPU s "
        "| Stable-Baselines3 | s | CPU s |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for (algorithm, env), (steps, bar, _) in CELLS.items():
        if (algorithm, env, OURS) not in cells:
            continue
        parts = [algorithm, env.rpartition(":")[2], f"{steps:,}", "" if bar is None else f"{bar}"]
        for library in (OURS, PEER):
            rows = cells[algorithm, env, library]
            parts.append(", ".join(f"{row.score:.3g}" for row in rows))
            for name in ("wall_seconds", "processor_seconds"):
                numbers = [getattr(row, name) for row in rows]
                parts.append(f"{min(numbers):.0f}" if numbers else "")  # others ran beside it
        lines.append(f"| {' | '.join(parts)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    options = parse(Options, sys.argv[1:], __doc__)
    if not options.page:
        measure(options)
    put(ROOT / "docs" / "results.md", "small tasks", table())
