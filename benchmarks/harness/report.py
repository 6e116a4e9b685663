"""From rates to a report: ratios, what the parts allow, the bars; as a table, as JSON, as a figure.

A report is one JSON object: ``machine``, ``options``, ``rows`` (one for each case: what it is, its
settings, its rates in steps a second for each round, their spread, its ratios) and ``bars``. A
ratio is taken in each round, so that what slows the whole machine for a while cancels out; a spread
is the median of the rounds, the lowest and the highest.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness.figures import NAMES, Bar, Panel, by_size, draw_bars, kind_of, plural, where
from benchmarks.harness.interleave import Result

Row = dict[str, Any]
CPP_PEERS = ("envpool", "ale")
HEADINGS = (
    *("envs", "groups", "workers", "steps/s", "range"),
    *("of (a)", "of (b)", "of parts", "worker cores", "of (a), a worker core"),
)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def ratio(rates: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """The spread of the quotients round by round; rounds that one of them lacks are left out."""
    return spread([rate / other for rate, other in zip(rates, reference, strict=False)])


def interval(
    rates: Sequence[float], reference: Sequence[float], rounds_per_start: int
) -> list[float]:
    """95 % bootstrap interval of the median ratio of ``rates`` to ``reference``.

    The rounds of one start belong together: with several starts, whole starts are drawn (each by
    the median of its ratios), with a single one its rounds.
    """
    ratios = np.divide(rates, reference[: len(rates)])
    whole = len(ratios) // rounds_per_start * rounds_per_start
    if whole > rounds_per_start:
        ratios = np.median(ratios[:whole].reshape(-1, rounds_per_start), axis=1)
    draws = np.random.default_rng(0).integers(len(ratios), size=(10_000, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), (0.025, 0.975))
    return [float(low), float(high)]


def parts_allow(
    cores: int, simulated: Sequence[float], inferred: Sequence[float], threads: int
) -> list[float]:
    """Steps a second if simulators and network shared the cores and nothing else cost time.

    ``cores / (simulator + inference core-seconds a step)``. ``simulated``: steps a second of
    the simulators alone on all cores, round by round; ``inferred``: of the network alone on
    ``threads`` cores.
    """
    rounds = zip(simulated, inferred, strict=False)
    return [cores / (cores / steps + threads / samples) for steps, samples in rounds]


def make_rows(results: Iterable[Result]) -> tuple[list[Row], list[Row]]:
    """A row for each case, and those of them that have figures: with their steps a second."""
    rows: list[Row] = [
        {"name": result.case.name, **result.case.row}
        | {"settings": result.settings, "rates": result.rates, "error": result.error}
        | {"rounds_per_start": result.rounds_per_start}
        for result in results
    ]
    measured = [row for row in rows if row["rates"] and not row["error"]]
    for row in measured:
        row["steps_per_second"] = spread(row["rates"])
    return rows, measured


def summarise(
    results: Iterable[Result], machine: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """The report. Cases that failed keep their row, with the error and without figures."""
    rows, measured = make_rows(results)
    num_cores = len(machine["cores_used"])
    for row in measured:
        same = {"hyperthreads": row["hyperthreads"]}
        emulator = find(measured, part="emulator", cached_starts=True, **same)
        environment = find(measured, part="environment", envs_per_core=row["hyperthreads"], **same)
        if row["part"] != "inference" and emulator and environment:
            row["of_emulator"] = ratio(row["rates"], emulator[0]["rates"])
            row["of_environment"] = ratio(row["rates"], environment[0]["rates"])
            worker_cores = (row["settings"] or {}).get("worker_cores")
            if worker_cores:  # a core that serves a GPU simulates nothing
                row["worker_cores"] = worker_cores
                row["of_emulator_a_worker_core"] = {
                    key: value * num_cores / worker_cores
                    for key, value in row["of_emulator"].items()
                }
        if row["part"] == "sampler" and row["network"]:
            threads = row["torch_threads"]
            alone = find(
                measured, part="inference", batch=row["batch"], torch_threads=threads, **same
            )
            if alone and environment and options["device"] == "cpu":
                allowed = parts_allow(
                    num_cores, environment[0]["rates"], alone[0]["rates"], threads
                )
                row["parts_allow"] = spread(allowed)
                row["of_parts"] = ratio(row["rates"], allowed)
    bars = [
        bar
        for threads in sorted({row["hyperthreads"] for row in measured})
        for bar in hold_against_bars(find(measured, hyperthreads=threads), options)
    ]
    return {"machine": machine, "options": options, "rows": rows, "bars": bars}


def find(rows: Iterable[Row], **values: Any) -> list[Row]:
    """The rows that have all of ``values``."""
    return [row for row in rows if all(row.get(key) == value for key, value in values.items())]


def fastest(rows: Iterable[Row]) -> Row | None:
    """The row with the highest median, if there is one."""
    return max(rows, key=lambda row: float(row["steps_per_second"]["median"]), default=None)


def hold_against_bars(rows: list[Row], options: dict[str, Any]) -> list[dict[str, Any]]:
    """What we set out to reach at two groups: our fastest layout, the peer's fastest settings."""
    is_half = options["observation_size"] == "104x80"
    ours = {"part": "sampler", "envs_per_core": options["bar_envs_per_core"], "groups": 2}
    bare = fastest(find(rows, **ours, network=False))
    served = fastest(find(rows, **ours, network=True))
    peers = [row for row in rows if row["part"] in CPP_PEERS]
    fastest_cpp = fastest(find(peers, network=False))
    envpool = fastest(find(peers, part="envpool", asynchronous=True, network=True))
    bars = []
    lead = 1.0 if options["busy"] else 1.1

    def hold(what: str, row: Row | None, value: dict[str, float] | None, bar: float) -> None:
        if row and value:
            bars.append({"what": what, "case": row["name"], "bar": bar, **value})

    def hold_lead(row: Row | None, network: bool) -> None:
        """Our lead over ale-py's asynchronous mode, by its interval."""
        ale = fastest(find(peers, part="ale", asynchronous=True, network=network))
        if row and ale:
            what = f"sampler{', network' * network} / {label(ale)}"
            hold(what, row, ratio(row["rates"], ale["rates"]), lead)
            rounds = row["rounds_per_start"]
            bars[-1]["interval"] = interval(row["rates"], ale["rates"], rounds)

    if bare:
        hold("sampler / environment (b)", bare, bare.get("of_environment"), 0.96)
        hold("sampler / emulator with saved starts (a)", bare, bare.get("of_emulator"), 0.88)
    if bare and fastest_cpp:
        value = ratio(bare["rates"], fastest_cpp["rates"])
        hold(
            f"sampler / fastest of the C++ peers ({label(fastest_cpp)})",
            bare,
            value,
            1.2 if is_half else 1.0,
        )
    if served:
        hold("sampler, network / what the parts allow", served, served.get("of_parts"), 0.85)
    if served and envpool:
        value = ratio(served["rates"], envpool["rates"])
        hold(f"sampler, network / EnvPool asynchronous ({label(envpool)})", served, value, 1.15)
    hold_lead(bare, network=False)
    hold_lead(served, network=True)
    return bars


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Prints the rows and the bars."""
    machine, options = report["machine"], report["options"]
    cores = len(machine["cores_used"])
    title = f"{options['game']}, steps a second on {cores} cores of {machine['cpu']}"
    table = Table("", title=title)
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    previous = None
    for row in report["rows"]:
        section = (row["hyperthreads"], row["part"], row.get("network"))
        if previous not in (None, section):
            table.add_section()
        previous = section
        shown = [label(row)]
        for key in ("envs_per_core", "groups", "workers_per_core"):
            shown.append(str(row.get(key, "")))
        steps = row.get("steps_per_second")
        if steps is None:
            table.add_row(*shown, "failed")
            continue
        shown += [f"{steps['median']:,.0f}", f"{steps['low']:,.0f}-{steps['high']:,.0f}"]
        shown += [ratio_cell(row.get(key)) for key in ("of_emulator", "of_environment", "of_parts")]
        if "worker_cores" in row:
            per_core = ratio_cell(row["of_emulator_a_worker_core"])
            shown += [str(row["worker_cores"]), per_core]
        table.add_row(*shown)
    console.print(table)
    console.print(
        "envs, workers: a core. (a): emulator, saved starts. (b): environment, one at a time.\n"
        "parts: cores / (simulator + inference core-seconds a step), each measured alone.",
        highlight=False,
    )
    for row in report["rows"]:
        if "parts_allow" in row and row["envs_per_core"] == options["bar_envs_per_core"]:
            allowed = row["parts_allow"]["median"]
            console.print(f"the parts allow {allowed:,.0f} steps/s: {layout(row)}", highlight=False)
    for bar in report["bars"]:
        low, high = bar.get("interval", (bar["median"], bar["median"]))
        verdict = "reached" if high >= bar["bar"] else "missed"
        text = f"{ratio_cell(bar)}, bar {bar['bar']:.2f} {verdict}: {bar['what']}"
        if "interval" in bar:
            text += f"; 95 % interval {low:.3f} to {high:.3f}"
        console.print(text, highlight=False)


def label(row: Row) -> str:
    """What a row is, in words."""
    part = row["part"]
    words = [part]
    if part == "emulator":
        words.append("saved starts" if row["cached_starts"] else "own resets")
    if part == "inference":
        words.append(f"batch {row['batch']}")
    if part in CPP_PEERS:
        words.append("asynchronous" if row["asynchronous"] else "synchronous")
        words += ["pinned"] * row["pinned"]
    if row.get("network"):
        words.append(f"A3C-Net x{row['torch_threads']}")
    if row["hyperthreads"] > 1:
        words.append(f"{row['hyperthreads']} hyperthreads")
    return ", ".join(words)


def layout(row: Row) -> str:
    """What one of our samplers is, with its groups and workers."""
    groups, workers = row["groups"], row["workers_per_core"]
    return f"{label(row)}, {groups} group{'s' * (groups > 1)}, {workers} workers a core"


def ratio_cell(value: dict[str, float] | None) -> str:
    """A spread of ratios in words, empty if there is none."""
    if value is None:
        return ""
    return f"{value['median']:.3f} ({value['low']:.2f}-{value['high']:.2f})"


def write(
    report: dict[str, Any],
    out: str,
    tabulate: Callable[[dict[str, Any], Console], None],
    draw: Callable[[dict[str, Any], Path], None] | None = None,
) -> None:
    """Print the tables of a report, and write OUT.json and OUT.png."""
    tabulate(report, Console(width=None if sys.stdout.isatty() else 160))
    write_json(report, Path(f"{out}.json"))
    if draw is not None:
        draw(report, Path(f"{out}.png"))
    print(f"wrote {out}.json" + f" and {out}.png" * (draw is not None), flush=True)


def write_json(report: dict[str, Any], path: Path) -> None:
    """The whole report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def draw(report: dict[str, Any], path: Path) -> None:
    """Bars without and with a network: ours for each number of environments, each peer's best."""
    rows = [row for row in report["rows"] if "steps_per_second" in row]
    panels = []
    for network in (False, True):
        own = [row for row in find(rows, network=network) if "envs_per_core" in row]
        keys = ("part", "asynchronous") if len({row["part"] for row in own}) > 1 else ("groups",)
        choices: dict[tuple[Any, ...], list[Row]] = {}
        for row in own:
            if row["part"] != "inference":
                key = (*(row.get(name) for name in keys), row["envs_per_core"], row["hyperthreads"])
                choices.setdefault(key, []).append(row)
        best = [row for row in map(fastest, choices.values()) if row]
        bars = [Bar(_bar_name(row), row["steps_per_second"], kind_of(row["part"])) for row in best]
        bare = fastest(find(rows, part="emulator", cached_starts=True))
        lines = {"bare emulator": bare["steps_per_second"]["median"]} if bare else {}
        if bars:
            heading = "with A3C-Net" if network else "random actions, no network"
            panels.append(Panel(heading, by_size(bars), lines))
    options = report["options"]
    busy = ", another process busy half of the time" if options.get("busy") else ""
    title = f"Sampling {options['game'].capitalize()} at {options['observation_size']}{busy}"
    draw_bars(path, panels, title, "steps a second, all cores", where(report))


def _bar_name(row: Row) -> str:
    """The name of a sampler's or a peer's bar."""
    words = [NAMES.get(row["part"], row["part"])]
    if row["part"] == "sampler":
        words.append(f"{plural(row['envs_per_core'], 'environment')} a core")
        words.append(plural(row["groups"], "group"))
    elif row.get("asynchronous") is not None:
        words.append("asynchronous" if row["asynchronous"] else "synchronous")
    return ", ".join(words)
