"""The pictures of recorded speeds and of recorded learning curves.

    python benchmarks/tables/pictures.py

draws all of them to ``docs/pictures`` from what ``benchmarks/results`` has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.runs.figures import COLOURS, GREY, EngFormatter, new_figure, style_axes
from accel_rl.runs.tables import read_rows
from accel_rl.tools.intervals import FEWEST_RUNS, interval_of_mean
from benchmarks.harness.figures import Curve, draw_bars, draw_curves, save

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PICTURES = ROOT / "benchmarks" / "results", ROOT / "docs" / "pictures"
OURS = "accel_rl"
PEERS = {
    "sb3": "Stable-Baselines3",
    "torchrl": "TorchRL",
    "cleanrl": "CleanRL",
    "leanrl": "LeanRL",
    "cleanrl_envpool": "CleanRL with EnvPool",
    "plain": "script over EnvPool",
    "sample_factory": "Sample Factory",
    "envpool": "EnvPool",
    "ale": "ale-py",
}
TRAINING = {
    "peers_ppo_nature_2cores": "PPO on Breakout trains 1.2 times as fast as the fastest other code",
    "peers_ppo_dqn_2cores": "PPO and DQN on Breakout train 1.6 times as fast as Stable-Baselines3",
    "peers_mujoco_xeon_2cores": "PPO trains 1.6, SAC 1.5 times as fast as Stable-Baselines3",
}
TASKS = {
    "ppo nature": "PPO on Breakout, the network of Nature",
    "ppo preset": "PPO on Breakout",
    "dqn preset": "DQN on Breakout",
    "ppo_mujoco two layers": "PPO on HalfCheetah",
    "sac two layers": "SAC on HalfCheetah",
}
SAMPLING = {
    "sampling_speed_2cores": "Sampling Breakout, accel_rl takes 1.1 to 1.2 times ale-py's steps",
    "sampling_starts_2cores": "Elsewhere it is as fast as ale-py, and 7 % slower with a network",
}
PARTS = {
    "waiting": ("simulators", "#c9a93f", 0.0),
    "inference": ("choosing actions", "#9a82b8", 0.17),
    "learning": ("learning", "#6f9a74", 0.41),
    "other": ("other", "#a8a8a8", 0.55),
}


class Line(NamedTuple):
    """Runs of one setting, by their files; ``points``: published ones, in million steps."""

    name: str
    files: Sequence[str] = ()
    points: Sequence[tuple[float, float]] = ()


class Panel(NamedTuple):
    title: str
    lines: Sequence[Line]


def _seeds(stem: str) -> list[str]:
    return [f"{stem}{seed}" for seed in range(3)]


def _mujoco(task: str, end: float) -> Panel:
    published = Line("CleanRL,\nat the end", points=((0, end), (1, end)))
    return Panel(task, (Line("accel_rl", _seeds(f"mujoco/ppo_{task}_seed")), published))


def _pqn(task: str, end: float) -> Panel:
    published = Line("CleanRL,\nat the end", points=((0, end), (0.5, end)))
    return Panel(task, (Line("accel_rl", _seeds(f"pqn/{task.lower()}_seed")), published))


LEARNING = {
    "curves_breakout": (
        "Breakout: PPO scores 49 after 2 M steps, A2C 25 after 3 M, GA3C 59 after 4.4 M",
        (
            Panel(
                "A2C and GA3C",
                (
                    Line("A2C", _seeds("a2c_breakout/seed")),
                    Line("A2C as in\nbaselines", ["a2c_breakout/baselines_8envs_seed0"]),
                    Line("GA3C", ["ga3c_breakout/hour_seed0"]),
                    Line("baselines,\npublished", (), ((0.5, 2.1), (1, 2.9), (2, 18.4), (3, 49.3))),
                ),
            ),
            Panel(
                "PPO",
                (
                    Line("PPO", ["ppo_breakout/paper_2m_seed0"]),
                    Line("PPO as in\nbaselines", _seeds("ppo_breakout/baselines_seed")),
                    Line("baselines,\npublished", (), ((0.5, 13.3), (1, 22.0), (2, 46.8))),
                ),
            ),
        ),
    ),
    "curves_pong": (
        "Pong: PPO's rate, made for 25 M steps, falls too early in 3 M",
        (
            Panel(
                "PPO",
                (
                    Line("PPO", ["ppo_pong/paper_3m_seed0"]),
                    Line("PPO as in\nbaselines", ["ppo_pong/baselines_a3c_seed0"]),
                    Line(
                        "baselines,\npublished", (), ((0.5, -17.4), (1, -2.6), (2, 14.1), (3, 17.6))
                    ),
                ),
            ),
            Panel(
                "Q-learning",
                (
                    Line("Rainbow", ["dqn_pong/rainbow_seed0"]),
                    Line("dueling,\nprioritised", ["dqn_pong/prioritized_dueling_seed0"]),
                ),
            ),
        ),
    ),
    "curves_mujoco": (
        "PPO ends higher than CleanRL's on three MuJoCo tasks",
        (_mujoco("HalfCheetah", 1443), _mujoco("Hopper", 2383), _mujoco("Walker2d", 2288)),
    ),
    "curves_pqn": (
        "PQN solves CartPole and Acrobot; one of three seeds forgets CartPole in the end",
        (_pqn("CartPole", 495.1), _pqn("Acrobot", -95.6)),
    ),
}


def main() -> None:
    for name, title in TRAINING.items():
        report = _read(name)
        panels = {}
        for key, task in TASKS.items():
            rows = [row for row in report["rows"] if row["name"].startswith(f"{key} ")]
            if len({row["part"] for row in rows}) > 1:
                panels[task] = _training_bars(rows)
        draw_speeds(name, title, panels, report, "steps a second, learning included")
    for name, title in SAMPLING.items():
        report = _read(name)
        panels = {
            task: _sampling_bars([row for row in report["rows"] if row.get("network") is network])
            for task, network in (("random actions", False), ("with A3C-Net", True))
        }
        draw_speeds(name, title, panels, report, "steps a second of both cores")
    draw_parts()
    for name, (title, curves) in LEARNING.items():
        draw_learning(name, title, curves)


def _read(name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return report


Bar = tuple[str, float, float, float]


def _bar(name: str, row: Any) -> Bar:
    speed = row["steps_per_second"]
    return name, speed["median"], speed["low"], speed["high"]


def _best(bars: Sequence[Bar]) -> list[Bar]:
    """The fastest of each name, fastest first."""
    return sorted(
        {bar[0]: bar for bar in sorted(bars, key=lambda b: b[1])}.values(), key=lambda b: -b[1]
    )


def _training_bars(rows: Sequence[Any]) -> list[Bar]:
    """Equal settings first; ours with other settings last."""
    ours = [_bar(OURS, row) for row in rows if row["part"] == OURS and not row["variant"]]
    peers = [_bar(PEERS[row["part"]], row) for row in rows if row["part"] != OURS]
    more = [row for row in rows if row["part"] == OURS and row["variant"]]
    names = [f"with {row['variant'].replace('serial=false', 'workers')}" for row in more]
    return (
        ours
        + _best(peers)
        + [
            _bar(n.replace(" ", "\n", 2).replace("\n", " ", 1), r)
            for n, r in zip(names, more, strict=True)
        ]
    )


def _sampling_bars(rows: Sequence[Any]) -> list[Bar]:
    bars = []
    for row in rows:
        if row["part"] == "sampler":
            bars.append(_bar(OURS, row))
        elif row["part"] in PEERS:
            how = "asynchronous" if row["asynchronous"] else "synchronous"
            bars.append(_bar(f"{PEERS[row['part']]}, {how}", row))
    return _best(bars)


def draw_speeds(
    name: str, title: str, panels: dict[str, list[Bar]], report: Any, unit: str
) -> None:
    """Bars of each panel; ours in the strong colour, and in a weaker one with other settings."""
    rows = report["rows"]
    bare = [row for row in rows if row["part"] == "emulator" and row["cached_starts"]]
    limit = bare[0]["steps_per_second"]["median"] if bare else None
    counts = [len(bars) for bars in panels.values()]
    figure = new_figure(8.0, 0.9 + 0.36 * sum(counts) + 0.5 * len(panels))
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=counts)[:, 0]
    for axes, (task, bars) in zip(grid, panels.items(), strict=True):
        draw_bars(axes, bars, {OURS: COLOURS[0], "with": "#8fb7c4"})
        if limit:
            axes.axvline(limit, color=GREY, linestyle="--", linewidth=1)
            axes.set_xlim(right=1.08 * limit)
        axes.set_title(task, loc="left", fontsize=10)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    machine = report["machine"]
    foot = f"{unit}; line: range of the rounds; 2 cores of {machine['cpu']}, {machine['date'][:10]}"
    foot += "; dashed: the emulator without observations" if limit else ""
    save(figure, PICTURES / f"{name}.png", title, foot)


def draw_parts() -> None:
    """Milliseconds that each part takes of a step."""
    report = _read("learning_speed_2cores")
    rows = report["rows"]
    figure = new_figure(8.0, 3.6)
    axes = figure.add_subplot()
    for place, row in enumerate(rows):
        speed, left = row["steps_per_second"]["mean"], 0.0
        for part, (_, colour, _) in PARTS.items():
            width = row["shares"][part] * 1000 / speed
            axes.barh(place, width, left=left, color=colour, height=0.7)
            left += width
        axes.text(left + 0.01, place, f"{speed:,.0f} steps/s", va="center", fontsize=9)
    for name, colour, x in PARTS.values():
        axes.text(x, -0.75, f"■ {name}", color=colour, fontsize=9, fontweight="bold")
    axes.set_yticks(range(len(rows)), [row["preset"].replace(" ", "\n", 1) for row in rows])
    axes.tick_params(axis="y", length=0, labelsize=9)
    axes.set_ylim(len(rows) - 0.5, -1.0)
    axes.set_xlim(0, 0.95)
    style_axes(axes, "x")
    machine = report["machine"]
    foot = f"milliseconds a step on Breakout; 2 cores of {machine['cpu']}, {machine['date'][:10]}"
    title = "On a CPU PPO spends most time on learning; 64 environments save a fifth"
    save(figure, PICTURES / "learning_speed_2cores.png", title, foot)


def draw_learning(name: str, title: str, panels: Sequence[Panel]) -> None:
    """Mean and band of three seeds, or one run; published numbers are dashed."""
    figure = new_figure(8.4, 3.6)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        curves = []
        for line, colour in zip(panel.lines, COLOURS, strict=False):
            if line.points:
                x, y = np.transpose(line.points)
                curves.append(Curve(line.name, x, y, GREY, "--"))
            else:
                curves.append(_curve(axes, line, colour))
        draw_curves(axes, curves, 8)
        axes.set_title(panel.title, loc="left", fontsize=10)
        axes.tick_params(labelsize=8)
        axes.set_xlabel("million steps", fontsize=9)
    figure.axes[0].set_ylabel("return", fontsize=9)
    foot = "mean return of the last 100 episodes; three seeds: mean, 95 % interval and each (thin)"
    save(figure, PICTURES / f"{name}.png", title, f"{foot}; other lines: one run")


def _curve(axes: Any, line: Line, colour: str) -> Curve:
    runs = []
    for file in line.files:
        rows = read_rows(RESULTS / f"{file}.csv", "steps", "episode_return_raw_mean")
        points = np.array([(row["steps"] / 1e6, row["episode_return_raw_mean"]) for row in rows])
        runs.append(points[np.isfinite(points[:, 1])])
    x = np.linspace(max(run[0, 0] for run in runs), min(run[-1, 0] for run in runs), 100)
    y = np.array([np.interp(x, *run.T) for run in runs])
    if len(runs) < FEWEST_RUNS:
        return Curve(line.name, x, y.mean(0), colour)  # type: ignore[arg-type]
    axes.plot(x, y.T, color=colour, linewidth=0.6, alpha=0.6)
    low, high = interval_of_mean(y)
    return Curve(line.name, x, y.mean(0), colour, low=low, high=high)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
