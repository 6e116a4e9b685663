"""How training and sampling grow with the number of learners: Tables 2 and 3 of arXiv:1803.02811.

    python benchmarks/scaling/scaling.py [key=value ...]

All in one interleaved run, in agent steps a second of all learners together, on the CPU or on GPUs
of this machine; the environments are as many whatever the number of learners:

    train, all_reduce   learners that make one update together
    train, store        learners that each push into the parameter store
    sample_in_step      sampling alone, with a barrier of all learners after every five steps
    sample              the same without

Beside each stand the share of time in all-reduces, lock waits, pushes and barriers, and the speed
that `speed_model` predicts from parts measured alone in the same rounds. The same
model is then asked about the paper's machine (8 GPUs, 40 cores), with what the GPU parts cost there
as stated assumptions. Prints tables and writes OUT.json and OUT.png.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.algos import DQNConfig
from accel_rl.presets import PRESETS
from benchmarks.harness.interleave import Case, measure
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.report import write
from benchmarks.scaling.learner_cases import learner_case
from benchmarks.scaling.scaling_report import draw, summarise, tabulate

SMALL_REPLAY = {"min_steps": 2_000, "replay_size": 50_000}
"""so that learning begins soon, and all cases have room in memory at once"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    game: str = "breakout"
    """Atari game"""
    algos: tuple[str, ...] = ("a2c",)
    """presets to train, options may follow after a blank; sampling is that of a2c. Q-learning has
    min_steps=2000 and replay_size=50000 unless these are among the options"""
    learners: tuple[int, ...] = (1, 2, 4)
    """processes that learn together"""
    num_envs: int = 64
    """simulators of all learners together"""
    what: tuple[str, ...] = ("train", "sample")
    """train, sample"""
    extra: str = "decorrelation_steps=0"
    """more options of every run, as on its command line"""
    device: str = "cpu"
    """where networks are: cpu or cuda, a GPU for each learner where there are enough"""
    rounds: int = 5
    """times that everything is measured"""
    seconds: float = 2.0
    """of one measurement, after a short warm-up, and at least one iteration"""
    simulator_ms: float = 0.83
    """assumed on the paper's machine, a step of one core: 32 of its 40 simulate, and 38,400 steps a
    second were the most (its Table 3)"""
    gpu_inference_ms: float = 1.0
    """assumed there, of the actions of one group"""
    gpu_update_ms: float = 8.0
    """assumed there, of an update of A2C with 32 environments"""
    gpu_all_reduce_ms: float = 1.0
    """assumed there, of one gradient among 8 GPUs"""
    out: str = "benchmarks/results/scaling"
    """where to write, without the ending"""


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    cores = usable_cores()
    machine = describe_machine(cores)
    cases = [*make_cases(options, sorted(cpu for core in cores for cpu in core))]
    results = measure(cases, rounds=options.rounds, seconds=options.seconds, console=progress)
    report = summarise(list(results.values()), machine, dataclasses.asdict(options))
    write(report, options.out, tabulate, draw)
    if any(result.error for result in results.values()):
        raise SystemExit(1)


def make_cases(options: Options, cpus: list[int]) -> Iterator[Case]:
    """The cases, by number of learners."""

    def case(what: str, algo: str, sync: str, learners: int) -> Case:
        num_envs = options.num_envs // (learners if sync == "store" else 1)
        given = [
            *f"algo={algo}".split(),
            f"env={options.game}",
            f"device={options.device}",
            f"learners={learners}",
        ]
        given += [f"sync={sync}", f"num_envs={num_envs}", *options.extra.split()]
        preset = PRESETS.get(given[0].removeprefix("algo="))
        if preset is not None and isinstance(preset().learner, DQNConfig):
            named = {each.partition("=")[0] for each in given}
            given += [f"{key}={value}" for key, value in SMALL_REPLAY.items() if key not in named]
        spec = {"what": what, "options": given, "cpus": cpus, "malloc": "tuned"}
        row = {"part": what, "algo": algo, "sync": sync, "learners": learners}
        name = f"{what}, {algo}, {sync}, learners: {learners}"
        return learner_case(name, spec, 1 if what == "parts" else learners, row)

    for learners in options.learners:
        if "train" in options.what:
            for algo in options.algos:
                for sync in ("all_reduce", "store"):
                    yield case("parts", algo, sync, learners)
                    yield case("train", algo, sync, learners)
        if "sample" in options.what:
            if "train" not in options.what or "a2c" not in options.algos:
                yield case("parts", "a2c", "all_reduce", learners)
            for what in ("sample_in_step", "sample"):
                yield case(what, "a2c", "all_reduce", learners)


if __name__ == "__main__":
    main()
