"""Saved runs as one HTML file for people: curves, scores, the time split, a film, the options.

The file loads nothing and has no script. Names and options of runs may be somebody else's text, and
all of it is escaped.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Literal

import numpy as np

from accel_rl import __version__
from accel_rl.runs.figures import Figure
from accel_rl.runs.files import read_text, write_whole
from accel_rl.runs.saved import read_config
from accel_rl.runs.tables import EPISODE_WINDOW, read_rows
from accel_rl.tools.compare import (
    COLUMNS,
    Axis,
    Group,
    by_env,
    command_of,
    find_runs,
    format_x,
    headline,
    make_groups,
    option_texts,
    read_curves,
)
from accel_rl.tools.intervals import METHOD
from accel_rl.tools.output import OutputOptions, check_output
from accel_rl.tools.plot import draw_groups
from accel_rl.training.progress import clock

_MOST_FILM_BYTES = 32 << 20
"""a larger film is left out"""
_MACHINE = re.compile(r"INFO (accel_rl .*?, torch .*?)(?:, load .*|; command: .*)?$", re.MULTILINE)
_PARTS = {
    "waiting_for_simulators_share": ("simulators", "#d9c27e"),
    "inference_share": ("choosing actions", "#b3a0c8"),
    "learning_share": ("learning", "#9db8a0"),
    "other": ("other", "#b8b8b8"),
}


@dataclass(frozen=True, kw_only=True)
class ReportOptions(OutputOptions):
    """Options of `report` and of ``accel_rl report``."""

    x: Literal["steps", "frames", "minutes"] = "steps"
    """Unit of the horizontal axis that the page shows first. minutes: time of training."""
    out: str | None = None
    """HTML file to write.
    none: report.html, in the directory of the sweep or run if only one is named."""


def report(named: Sequence[str | Path], options: ReportOptions) -> Path:
    """Write the page about the runs ``named``, or those of a sweep's directory; return its path."""
    runs = find_runs(named)
    folder = Path(named[0]) if len(named) == 1 else Path()
    out = Path(options.out) if options.out else folder / "report.html"
    check_output(out, (".html",), overwrite=options.overwrite)
    curves, unfinished = read_curves(runs, options.x, trust=options.trust)
    groups = make_groups(curves, options.x)
    by_axis: dict[Axis, list[Group]] = {options.x: groups}
    for axis in COLUMNS:
        with suppress(ValueError):  # over this axis the runs have no stretch in common
            others, _ = read_curves(runs, axis, trust=options.trust)
            by_axis.setdefault(axis, make_groups(others, axis))
    shown = [run for group in groups for run in group.runs]
    facts, origins = _origins(shown, trust=options.trust)
    body = facts
    for of_env in by_env(groups):
        body += f"<p class='lead'>{escape(headline(of_env, options.x))}.</p>"
    body += _curves(by_axis) + _scores(groups, options.x)
    body += _time_split(shown) + _film(shown) + origins
    older = [run for group in groups for run in group.left_out]
    reasons = "newer runs have the same options and seed", "no game has ended yet"
    for why, left_out in zip(reasons, (older, unfinished), strict=True):
        if left_out:
            names = escape(", ".join(run.name for run in left_out))
            body += f"<p class='hint'>Left out, since {why}: {names}</p>"
    title = folder.resolve().name if len(named) == 1 else f"{len(shown)} runs"
    write_whole(out, _page(title, body).encode())
    return out


def _curves(by_axis: dict[Axis, list[Group]]) -> str:
    """Return a figure of each environment over each axis, and buttons that choose the axis."""
    choices, figures = "", ""
    for axis, groups in by_axis.items():
        is_first = " checked" * (not choices)
        choices += f"<label><input type='radio' name='axis' id='{axis}'{is_first}> {axis}</label>"
        for of_env in by_env(groups):
            svg = _to_svg(draw_groups(of_env, axis, width=4.5))
            name = f"<figcaption>{escape(of_env[0].env)}</figcaption>"
            figures += f"<figure class='{axis}'>{name}{svg}</figure>"
    return f"<h2>Learning curves</h2><p class='choices'>{choices}</p>{figures}"


def _to_svg(figure: Figure) -> str:
    import matplotlib

    buffer = io.StringIO()
    figure.suptitle("")  # the first words of the page
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", transparent=True)
    _, tag, svg = buffer.getvalue().partition("<svg")
    return re.sub(r"<metadata>(?s:.*?)</metadata>", "", tag + svg)


def _scores(groups: Sequence[Group], axis: Axis) -> str:
    rows = [
        (
            *(group.env, group.label, ", ".join(map(str, group.seeds)), str(group.end)),
            format_x(group.x[-1], axis),
        )
        for group in sorted(groups, key=lambda each: (each.env, -each.end.value))
    ]
    head = ("environment", "runs", "seeds", "score", axis)
    note = f"Score: mean of the last {EPISODE_WINDOW} games, then over the seeds. {METHOD}."
    return f"<h2>Final scores</h2>{_table(head, rows)}<p class='hint'>{note}</p>"


def _time_split(runs: Sequence[Path]) -> str:
    bars = ""
    for run in runs:
        rows = read_rows(run / "metrics.csv", "training_seconds")
        seconds = np.diff([row["training_seconds"] for row in rows], prepend=0.0)
        shares = [
            np.nansum([row.get(name, 0.0) for row in rows] * seconds) / max(seconds.sum(), 1e-9)
            for name in _PARTS
        ]
        shares[-1] = max(0.0, 1 - sum(shares))
        pieces = "".join(
            f"<span style='background:{colour};width:{share:.2%}'>"
            f"{f'{share:.0%}' if share > 0.07 else ''}</span>"
            for (_, colour), share in zip(_PARTS.values(), shares, strict=True)
        )
        speed = rows[-1]["steps"] / max(rows[-1]["training_seconds"], 1e-9)
        bars += f"{escape(run.name)}: {speed:,.0f} steps/s<div class='bar'>{pieces}</div>"
    keys = "".join(
        f"<span><i style='background:{c}'></i>{name}</span>" for name, c in _PARTS.values()
    )
    return f"<h2>Where the time went</h2><p class='choices'>{keys}</p>{bars}"


def _film(runs: Sequence[Path]) -> str:
    """Return the first film, unless it is large."""
    for path in (run / name for run in runs for name in ("game.mp4", "game.gif")):
        if path.is_file() and path.stat().st_size <= _MOST_FILM_BYTES:
            data = base64.b64encode(path.read_bytes()).decode()
            source = f"src='data:video/mp4;base64,{data}'"
            film = f"<video class='film' controls autoplay loop muted {source}></video>"
            if path.suffix == ".gif":
                film = f"<img class='film' alt='a game' src='data:image/gif;base64,{data}'>"
            return f"<h2>A game of {escape(path.parent.name)}</h2>{film}"
    return ""


def _origins(runs: Sequence[Path], *, trust: bool) -> tuple[str, str]:
    """Return the machine and time of all runs, and the command of each with all options."""
    rows, values, total = [], dict[str, list[str]](), 0.0
    for run in runs:
        config = read_config(run, trust=trust)
        for key, value in option_texts(config).items():
            values.setdefault(key, []).append(value)
        total += (seconds := read_rows(run / "metrics.csv")[-1]["training_seconds"])
        machines = ["an unknown machine"]
        with suppress(OSError, ValueError):
            machines += _MACHINE.findall(read_text(run / "train.log"))
        rows.append((run.name, clock(seconds), command_of(config), machines[-1]))
    places = dict.fromkeys(row[-1] for row in rows)
    where = next(iter(places)) if len(places) == 1 else f"{len(places)} machines, named below"
    facts = f"<p class='hint'>{clock(total)} of training on {escape(where)}</p>"
    head = ("run", "time of training", "command", "machine")[: 3 + (len(places) > 1)]
    options = [(key, ", ".join(dict.fromkeys(values[key]))) for key in values]
    apart = [(k, v) for k, v in options if len({*values[k]}) > 1 and k not in ("seed", "run_dir")]
    names = ("option", "values")
    text = f"<h2>Runs</h2>{_table(head, [row[: len(head)] for row in rows])}"
    text += f"<h2>What differs</h2>{_table(names, apart)}" if apart else ""
    return facts, f"{text}<details><summary>All options</summary>{_table(names, options)}</details>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = "".join(f"<th>{escape(each)}</th>" for each in head)
    for row in rows:
        cells = zip(head, map(escape, row), strict=True)
        text += "<tr>" + "".join(f"<td data-head='{escape(a)}'>{b}</td>" for a, b in cells)
    return f"<table>{text}</table>"


_STYLE = """
:root{color-scheme:light dark;--ink:#222;--faint:#666;--line:#e3e3e3}
@media(prefers-color-scheme:dark){:root{--ink:#ddd;--faint:#999;--line:#3a3a3a}
body{background:#181818}svg{filter:invert(1) hue-rotate(180deg)}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);max-width:1000px;margin:2em auto;
padding:0 1em;overflow-wrap:anywhere}
h1{font-size:1.5em;margin-bottom:0}h2{font-size:1.15em;margin-top:2em}
.lead{font-size:1.2em;margin:.4em 0}.hint,footer{color:var(--faint);font-size:.85em}
table{border-collapse:collapse}td,th{padding:.25em .9em .25em 0;text-align:left;vertical-align:top}
td{border-top:1px solid var(--line)}
figure{margin:0;max-width:600px}svg{width:100%;height:auto}
body:has(#steps:not(:checked)) .steps,body:has(#minutes:not(:checked)) .minutes,
body:has(#frames:not(:checked)) .frames{display:none}
h1+.hint{margin:0 0 1.5em}
.choices{display:flex;flex-wrap:wrap;gap:.2em 1.2em;margin:.4em 0}label{cursor:pointer}
i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
.bar{display:flex;margin-bottom:.5em;color:#222;font-size:.8em;text-align:center}
.film{max-width:100%;min-width:240px}summary{cursor:pointer}
@media(max-width:600px){tr,td{display:block}tr:has(th){display:none}td{border:0}
tr{padding:.6em 0;border-top:1px solid var(--line)}
td::before{content:attr(data-head)": ";color:var(--faint)}}
"""


def _page(title: str, body: str) -> str:
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{escape(title)}, accel_rl</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{body}<footer>accel_rl {__version__}, {made}</footer>"
        "</body></html>\n"
    )
