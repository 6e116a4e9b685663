"""Hits runs with signals at random moments, and looks whether anything hangs, leaks or is lost.

    python tests/stress/chaos.py [key=value ...]

Each trial starts a way of running (``ways.py``), hits one of its processes with SIGKILL, SIGSTOP,
SIGTERM or SIGINT at a random moment of its start, of training or of the writing of a checkpoint,
and asserts: the casualty is named in time, exit codes are as documented, no process, shared memory,
temporary file or (in an embedding script) descriptor is left, the last checkpoint loads, and the
resumed run has the parameters of one that never stopped, where that is promised. A trial prints its
case and seed, with which it is repeated: ``case='parallel/worker/KILL' seed=12 trials=1``. Appends
each result to OUT.jsonl. Linux only.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

from trial import Result, Trial
from ways import QUICK, QUICK_TIMES, Signal, make_cases, make_ways

from benchmarks.harness.options import parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to try."""

    case: str = ""
    """WAY/TARGET/SIGNAL alone, as a trial prints it; empty: all in turn"""
    ways: list[str] = field(default_factory=list)
    """only these ways of running; empty: all"""
    phase: str = ""
    """start, steps or checkpoint; empty: drawn"""
    seed: int = 0
    """of the first trial; each of the others has the next"""
    trials: int = 1_000_000
    """trials at most"""
    minutes: float = 30.0
    """after which no trial begins"""
    folder: str = ""
    """where failed trials are kept; empty: a temporary directory"""
    out: str = "build/chaos"
    """file of the results, without its suffix"""


def main() -> int:
    options = parse(Options, sys.argv[1:], __doc__)
    # A shell lets programs in the background ignore Ctrl-C, and they what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(options.folder or tempfile.mkdtemp(prefix="chaos-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    try:
        for result in run_trials(options, folder):
            results.append(result)
            with open(f"{out}.jsonl", "a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            tell(result)
    except KeyboardInterrupt:
        print("stopped")
    failed = sum(bool(result.failures) for result in results)
    print(f"{len(results)} trials, {failed} failed; written: {out}.jsonl")
    if not any(folder.iterdir()):
        folder.rmdir()
    return 1 if failed else 0


def run_trials(options: Options, folder: Path) -> Iterator[Result]:
    """Yield the results of trials, one after another, until time is over."""
    from resuming import References, look_at_checkpoints

    ends_at = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="chaos-references-") as temporary:
        references = References(Path(temporary))
        cases = list(make_cases(make_ways(folder)))
        if options.case:
            way, target, sent = options.case.split("/")
            cases = [each for each in cases if each == (way, target, sent)]
        if options.ways:
            cases = [each for each in cases if each[0] in options.ways]
        if not cases:
            raise SystemExit("there is no such case")
        for number in range(options.trials):
            if time.monotonic() >= ends_at:
                return
            seed = options.seed + number
            name, target, sent = draw_case(cases, seed)
            result = Result(name, target, sent, options.phase, seed)
            place = folder / f"{seed}"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            trained = references.trained() if name == "evaluate" else None
            way = make_ways(place / "run", trained)[name]
            trial = Trial(way, result, place)
            trial.run()
            if not result.missed and not result.failures:
                look_at_checkpoints(trial, references)
            yield result
            if not result.failures:
                shutil.rmtree(place)


def draw_case(cases: list[tuple[str, str, Signal]], seed: int) -> tuple[str, str, Signal]:
    """Return the case of a trial. Seeds in a row deal all cases, quick ones more often."""
    deck = sorted(cases * QUICK_TIMES)
    deck = [case for n, case in enumerate(deck) if case[0] in QUICK or n % QUICK_TIMES == 0]
    random.Random(0).shuffle(deck)
    return deck[seed % len(deck)]


def tell(result: Result) -> None:
    """Print a line of a trial, and how it is repeated."""
    state = "missed" if result.missed else "FAILED" if result.failures else "held"
    named = "" if result.named_seconds is None else f", named after {result.named_seconds} s"
    resumed = ", resumed" if result.resumed else ""
    case = f"{result.way}/{result.target}/{result.signal}"
    print(
        f"{state}: case='{case}' seed={result.seed} ({result.phase}): exit code {result.code}"
        f"{named}{resumed}, {result.seconds} s",
        flush=True,
    )
    for failure in result.failures:
        print(f"    {failure}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
