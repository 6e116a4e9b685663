"""Redraw every figure in benchmarks/results from the JSON and CSV files there.

    python benchmarks/redraw.py

A report NAME.json becomes NAME.png; the curves of runs become curves_*.png. The figures of the
gallery are copied to docs/pictures.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accel_rl.runs.figures import COLOURS, Axes, new_figure
from benchmarks.ga3c import ga3c_report
from benchmarks.harness import report
from benchmarks.harness.figures import Curve, draw_curves, save
from benchmarks.peers import peers
from benchmarks.replay import replay_speed
from benchmarks.scaling import scaling_report, store_speed
from benchmarks.training import learning_speed

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "pictures"
DRAW = {
    "sampling_*": report.draw,
    "peers_*": peers.draw,
    "replay_*": replay_speed.draw,
    "scaling_*": scaling_report.draw,
    "store_*": store_speed.draw,
    "learning_*": learning_speed.draw,
    **{f"ga3c*_{part}": draw for part, draw in ga3c_report.DRAW.items()},
}
"""names of reports and what draws them"""
GALLERY = (
    "sampling_speed_2cores",
    "sampling_starts_2cores",
    "peers_ppo_nature_2cores",
    "peers_ppo_dqn_2cores",
    "peers_mujoco_2cores",
    "replay_speed_equal_2cores",
    "store_speed_2cores",
    "scaling_serial_2cores",
    "learning_speed_2cores",
    "curves_breakout",
    "curves_pong",
    "curves_mujoco",
    "curves_pqn",
)
"""figures that docs/gallery.md shows"""
OURS, OTHER, PUBLISHED = COLOURS[0], COLOURS[1], "#777777"


def main() -> None:
    """Draw all."""
    for pattern, draw in DRAW.items():
        for path in sorted(RESULTS.glob(f"{pattern}.json")):
            draw(json.loads(path.read_text()), path.with_suffix(".png"))
    for draw_runs in (draw_breakout, draw_pong, draw_mujoco, draw_pqn):
        draw_runs()
    for name in GALLERY:
        shutil.copy(RESULTS / f"{name}.png", PICTURES / f"{name}.png")


def read_curve(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Return millions of steps and the mean return of the last 100 episodes of a run."""
    with (RESULTS / path).open() as file:
        rows = list(csv.DictReader(file))
    column = "score" if "score" in rows[0] else "episode_return_raw_mean"
    points = [(float(row["steps"]) / 1e6, float(row[column])) for row in rows]
    steps, returns = np.array([point for point in points if not math.isnan(point[1])]).T
    return steps, returns


def seeds(name: str, paths: Sequence[str], colour: str, style: str = "-") -> list[Curve]:
    """A curve for each run; the name stands at the one that ends in the middle."""
    curves = [Curve("", *read_curve(path), colour, style) for path in paths]
    ranks = sorted(range(len(curves)), key=lambda k: curves[k].y[-1])
    named = ranks[len(ranks) // 2]
    own = curves[named]
    curves[named] = Curve(name, own.x, own.y, colour, style)
    return curves


def published(name: str, steps: Sequence[float], returns: Sequence[float]) -> Curve:
    """A reference, dashed."""
    return Curve(name, steps, returns, PUBLISHED, "--")


def draw_panels(name: str, title: str, panels: dict[str, list[Curve]]) -> None:
    """Panels side by side, steps in millions."""
    figure = new_figure(1.5 + 3.2 * len(panels), 3.6)
    all_axes: list[Axes] = list(figure.subplots(1, len(panels), squeeze=False)[0])
    for axes, (heading, curves) in zip(all_axes, panels.items(), strict=True):
        draw_curves(axes, curves)
        axes.set_title(heading, loc="left", fontsize="medium")
        axes.set_xlabel("million steps")
    all_axes[0].set_ylabel("return, mean of the last 100 episodes")
    foot = "one line a seed; dashed: published or measured with the other library"
    save(figure, RESULTS / f"{name}.png", title, foot)


def draw_breakout() -> None:
    """A2C, PPO and GA3C on Breakout beside the curves of OpenAI's baselines."""
    a2c = [
        *seeds("the paper's preset", [f"a2c_breakout/seed{k}.csv" for k in range(3)], OURS),
        *seeds("a2c_baselines, 8 envs", ["a2c_breakout/baselines_8envs_seed0.csv"], OTHER),
        *seeds("GA3C", ["ga3c_breakout/hour_seed0.csv"], COLOURS[2]),
        published("baselines", [0.5, 1, 2, 3], [2.1, 2.9, 18.4, 49.3]),
    ]
    ppo = [
        *seeds("the paper's preset", ["ppo_breakout/paper_2m_seed0.csv"], OURS),
        *seeds("ppo_baselines", [f"ppo_breakout/baselines_seed{k}.csv" for k in range(3)], OTHER),
        published("baselines", [0.5, 1, 2], [13.3, 22.0, 46.8]),
    ]
    draw_panels("curves_breakout", "Breakout", {"A2C and GA3C": a2c, "PPO": ppo})


def draw_pong() -> None:
    """PPO and Q-learning on Pong."""
    ppo = [
        *seeds("the paper's preset", ["ppo_pong/paper_3m_seed0.csv"], OURS),
        *seeds("ppo_baselines, A3C-Net", ["ppo_pong/baselines_a3c_seed0.csv"], OTHER),
        published("baselines", [0.5, 1, 2, 3], [-17.4, -2.6, 14.1, 17.6]),
    ]
    dqn = [
        *seeds("dueling, prioritised", ["dqn_pong/prioritized_dueling_seed0.csv"], OURS),
        *seeds("epsilon-Rainbow", ["dqn_pong/rainbow_seed0.csv"], OTHER),
    ]
    draw_panels("curves_pong", "Pong", {"PPO": ppo, "Q-learning": dqn})


def draw_mujoco() -> None:
    """PPO on MuJoCo beside the last returns of CleanRL."""
    panels = {}
    for task, final in {"HalfCheetah": 1443, "Hopper": 2383, "Walker2d": 2288}.items():
        paths = [f"mujoco/ppo_{task}_seed{k}.csv" for k in range(3)]
        line = published("CleanRL, end", [0, 1], [final, final])
        panels[f"{task}-v4"] = [*seeds("accel_rl", paths, OURS), line]
    draw_panels("curves_mujoco", "PPO on MuJoCo", panels)


def draw_pqn() -> None:
    """PQN on CartPole and Acrobot beside the last returns of CleanRL."""
    panels = {}
    for task, final in {"CartPole": 495.1, "Acrobot": -95.6}.items():
        paths = [f"pqn/{task.lower()}_seed{k}.csv" for k in range(3)]
        line = published("CleanRL, end", [0, 0.5], [final, final])
        panels[task] = [*seeds("accel_rl", paths, OURS), line]
    draw_panels("curves_pqn", "PQN", panels)


if __name__ == "__main__":
    main()
