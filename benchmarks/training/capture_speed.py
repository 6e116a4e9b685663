"""Updates, acting and update rules, captured and as they are, in one interleaved run.

Each algorithm is built twice, with ``capture=off`` and ``capture=on``, on observations of real
games. In every round each of the two does an iteration's update, acts for all environments, applies
its update rule once more, and does a whole iteration, which acts in every step before the update.
On a CPU A2C and PPO learn from what acting has computed only if nothing is compiled. Torch's
threads are those of training: for an update as many as this process may use CPUs (``taskset -c 0``
for one), for acting one. ``start``: seconds of all that comes before the first round, compiling
included.

    python benchmarks/training/capture_speed.py rounds=9
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.cli.parse import parse_arguments
from accel_rl.samplers.base import PolicyInput
from accel_rl.training.torch_setup import learning_threads, num_learning_threads, tune_malloc
from benchmarks.harness.machine import describe_machine
from benchmarks.harness.options import parse
from benchmarks.harness.report import ratio, spread, write_json
from benchmarks.scaling.speed_parts import PartsOfOne

# Optimizer steps of an update: 1, 4 and 4.
CASES = {
    "a2c": "algo=a2c num_envs=16",
    "ppo": "algo=ppo num_envs=16 horizon=32 minibatch_size=512 epochs=4",
    "double_dqn": "algo=double_dqn dueling=true optimizer=adam batch_size=32 num_envs=16 horizon=1",
}
CAPTURES = ("off", "on")


@dataclass(frozen=True)
class CaptureOptions:
    """What to measure."""

    cases: list[str] = field(default_factory=lambda: list(CASES))
    """algorithms"""
    rounds: int = 9
    """how often each is measured"""
    out: str = ""
    """file of the results, without its ending; empty: none"""


def main() -> None:
    """Measures, prints milliseconds, and writes them where asked."""
    options = parse(CaptureOptions, sys.argv[1:], __doc__)
    tune_malloc()
    torch.set_num_threads(1)
    rows = [row for case in options.cases for row in measure(case, options.rounds)]
    for row in rows:
        figures = ", ".join(f"{key} {value}" for key, value in row.items() if key != "case")
        print(f"{row['case']}: {figures}")
    if options.out:
        write_json(
            {"machine": describe_machine([]), "options": asdict(options), "rows": rows},
            Path(options.out).with_suffix(".json"),
        )


def measure(case: str, rounds: int) -> list[dict[str, Any]]:
    """For each part its spread of seconds with and without, and of the ratio round by round."""
    with ExitStack() as stack:
        parts: dict[str, dict[str, Callable[[], object]]] = {}
        start: dict[str, float] = {}
        for capture in CAPTURES:
            began = perf_counter()
            parts[capture] = make_parts(stack, case, capture)
            for act in parts[capture].values():
                act()
            start[capture] = perf_counter() - began
        seconds = {(name, capture): [] for name in parts["on"] for capture in CAPTURES}  # type: ignore[var-annotated]
        for _ in range(rounds):
            for name in parts["on"]:
                for capture in CAPTURES:
                    times = repeat(parts[capture][name], 15 if name in ("act", "rule") else 1)
                    seconds[name, capture].append(statistics.median(times))
    rows: list[dict[str, Any]] = [{"case": case, "part": "start", **start}]
    for name in parts["on"]:
        off, on = (seconds[name, capture] for capture in CAPTURES)
        spreads = {"off": spread(off), "on": spread(on), "on_to_off": ratio(on, off)}
        rows.append({"case": case, "part": name, **spreads})
    return rows


def make_parts(stack: ExitStack, case: str, capture: str) -> dict[str, Callable[[], object]]:
    """What can be measured of ``case``: an iteration, its update, acting, the rule alone."""
    arguments = f"{CASES[case]} env=breakout model=a3c capture={capture}".split()
    one = stack.enter_context(PartsOfOne(parse_arguments(arguments), 1))
    built = one.parts
    sampler, server, learner = built.sampler, built.server, built.learner
    uniform = np.full(sampler.config.num_envs, 0.5)
    num_threads = num_learning_threads()

    def update() -> None:
        with learning_threads(num_threads):
            learner.update(server.finish(), 0.0)
            wait(built.device)

    def act(t: int = 0) -> None:
        columns = slice(0, uniform.size)
        begins = np.zeros(len(uniform), np.bool_)
        reward = sampler.rollout.reward[t - 1]
        server(PolicyInput(sampler.rollout.observation[t], uniform, t, columns, begins, reward))

    def iteration() -> None:
        for t in range(sampler.config.horizon):
            act(t)
        update()

    def rule() -> None:
        with learning_threads(num_threads):
            built.exchange.step(0.0)
            wait(built.device)

    return {"iteration": iteration, "update": update, "act": act, "rule": rule}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def repeat(act: Callable[[], object], times: int) -> list[float]:
    """Seconds of each time."""
    seconds = []
    for _ in range(times):
        began = perf_counter()
        act()
        seconds.append(perf_counter() - began)
    return seconds


if __name__ == "__main__":
    main()
