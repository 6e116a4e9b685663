"""``sweep`` from the command line: its arguments, messages and exit code."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from accel_rl.runs.directory import hold
from accel_rl.runs.files import WriteError, explain, naming, write_whole
from accel_rl.runs.yaml_file import UNSIGNED
from accel_rl.sweeps.display import SweepDisplay
from accel_rl.sweeps.plan import (
    PlannedRun,
    SweepOptions,
    check_runs,
    grow,
    plan_runs,
    read_options,
    read_plan,
    write_plan,
)
from accel_rl.sweeps.queue import make_jobs, note_if_finished, work_off
from accel_rl.sweeps.report import NAMES, Panel, write_report
from accel_rl.sweeps.slots import slots_here
from accel_rl.system.console import complain, tell_error
from accel_rl.system.lasting_console import LastingConsole
from accel_rl.system.process_settings import directory, taking_back
from accel_rl.system.signing import user_key
from accel_rl.system.stopping import Interrupted, StopRequest
from accel_rl.tools.intervals import METHOD
from accel_rl.tools.output import make_table


def sweep(arguments: Sequence[str]) -> int:
    """Run a sweep; return 0, 1 (refused, or a run failed), or 128 and a signal's number."""
    try:
        return run_sweep(arguments, LastingConsole())[1]
    except WriteError as error:
        tell_error(explain(error, "choose another sweep_dir"), ["sweep", *arguments])
    except (ValueError, OSError) as error:
        tell_error(error, ["sweep", *arguments])
    except Interrupted as interrupted:
        complain(f"stopped by {interrupted.signal.name} before a run began")
        return 128 + interrupted.signal
    return 1


def run_sweep(arguments: Sequence[str], console: Console) -> tuple[Path, int]:
    """Run a sweep; return its directory and exit code."""
    if sys.platform != "linux":
        raise ValueError(f"sweeps need Linux, and this is {sys.platform}; run them one by one")
    with StopRequest():
        options, axes = read_options(arguments)
        if options.resume is None:
            runs = plan_runs(axes, options.config, trust=options.trust)
        else:
            runs = read_plan(Path(options.resume), trust=options.trust)
            if axes:
                runs = grow(Path(options.resume), runs, axes)
        return _sweep(options, runs, console)


def _sweep(options: SweepOptions, runs: list[PlannedRun], console: Console) -> tuple[Path, int]:
    number, total = options.part_of
    mine = runs[number - 1 :: total]
    if not mine:
        raise ValueError(f"part={options.part} has no run: there are {len(runs)} in all")
    slots = slots_here(options, [run.config for run in mine])
    console.print(f"checking {len(mine)} runs", highlight=False)  # seconds, with many games
    with taking_back([directory()]):  # environments may change it, and paths are relative
        check_runs(mine)
    sweep_dir = make_directory(options, runs)
    # A folder for each part, which also keeps two programs from doing the same part.
    output_dir = sweep_dir / "output" / (f"part_{number}_of_{total}" if total > 1 else "")
    output_dir.mkdir(parents=True, exist_ok=True)
    with hold(output_dir):
        if options.resume is not None:  # it may have grown
            write_plan(sweep_dir, runs)
        jobs = make_jobs(runs, sweep_dir, output_dir, trust=options.trust)
        here = [job for job in jobs if job.run in mine]
        display = SweepDisplay(console, here)
        with closing(display), StopRequest(display.close) as stop:
            display.say(
                f"sweep directory: {sweep_dir}\n{len(here)} runs, {len(slots)} at a time; "
                f"finished before: {sum(job.state == 'finished' for job in here)}"
            )
            for job in here:
                if job.state == "failed":
                    display.say(f"{job.run.name}: {job.error}")
            if user_key() is None:
                display.say(f"the sweep is {UNSIGNED}")
            stop.hold()
            work_off(here, slots, stop, display.tell, display.look)
            for job in jobs:  # of the other parts, too, as far as they have come by now
                if job.state == "waiting":
                    note_if_finished(job)
            panels = write_report(sweep_dir, jobs)
    for panel in panels:
        console.print(results_table(panel, console.width))
    display.say(f"written: {sweep_dir}/results.md, results.csv")
    failed = [job for job in here if job.state == "failed"]
    for job in failed:
        complain(f"failed: {job.run.name}: {job.error}\n(details: {job.output})")
    if failed or stop.received is not None:
        display.say(f"go on with resume={shlex.quote(str(sweep_dir))}")
    elif panels:
        display.say(f"next: accel_rl report {shlex.quote(str(sweep_dir))}")
    if stop.received is not None:
        complain(f"stopped by {stop.received.name}")
        return sweep_dir, 128 + stop.received
    return sweep_dir, int(bool(failed))


def make_directory(options: SweepOptions, runs: list[PlannedRun]) -> Path:
    """Return the directory of ``resume``, a new one, or one that another part has made."""
    if options.resume is not None:
        return Path(options.resume)
    path = Path(options.sweep_dir or f"sweeps/{datetime.now():%Y%m%d-%H%M%S}")
    with naming(path):
        path.mkdir(parents=True, exist_ok=True)
    # Another part may be writing its plan, which is the same, and before it the same options.
    being_written = (".sweep.yaml.", ".config.yaml.")
    names = [name for name in os.listdir(path) if not name.startswith(being_written)]
    text = None if options.config is None else Path(options.config).read_bytes()
    copy = path / "config.yaml"
    if names == ["config.yaml"] and copy.read_bytes() == text:
        names = []
    if "sweep.yaml" in names and options.part_of[1] > 1 and read_plan(path) == runs:
        return path
    if names:
        raise ValueError(
            f"sweep_dir={path} is not empty; choose another, or go on with resume={path}"
        )
    if text is not None:
        write_whole(copy, text)
    write_plan(path, runs)  # for other parts, which may begin meanwhile
    return path


def results_table(panel: Panel, width: int) -> RenderableType:
    """Return the aggregates of ``panel`` for a terminal that is ``width`` columns wide."""
    rows = []
    for label, estimates in panel.estimates.items():
        # Intervals have a line of their own, since 80 columns do not hold three beside each other.
        values = (str(estimates[key]).replace(" ", "\n", 1) for key in NAMES)
        rows.append((label, *map(str, panel.counts[label]), *values))
    table = make_table(("configuration", "games", "runs", *NAMES.values()), rows, width)
    table.title, table.title_justify = Text(panel.title, "table.title"), "left"
    table.caption = METHOD
    return table
