"""Saved runs as one HTML file for people: curves, scores, the time split, a film, the options.

The file loads nothing from elsewhere. Names and options of runs may be somebody else's text: all of
it is escaped, and a browser runs no script but those with the page's own nonce.
"""

from __future__ import annotations

import base64
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from accel_rl import __version__
from accel_rl.options import check_settings, list_options
from accel_rl.runs.figures import COLOURS
from accel_rl.runs.files import write_whole
from accel_rl.runs.saved import read_config
from accel_rl.runs.tables import EPISODE_WINDOW, read_rows
from accel_rl.runs.yaml_file import exact_text
from accel_rl.system.extras import missing_package
from accel_rl.tools.compare import Group, NoValueError, format_x, make_groups, read_curve
from accel_rl.tools.movie import read_pictures, to_webp
from accel_rl.tools.output import check_output

MOST_FILM_BYTES = 64 << 20
"""a larger film is left out"""
_MOST_NAMED = 12
"""runs that have a box of their own below the curves"""
_PARTS = {
    "waiting_for_simulators_share": ("simulators", "#1f6f8b"),
    "inference_share": ("choosing actions", "#c8553d"),
    "learning_share": ("learning", "#5b8c3a"),
}


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """How a page about saved runs is made."""

    x: Literal["steps", "frames", "minutes"] = "steps"
    """what the curves stand over; minutes are those of training, evaluation left out"""
    out: str = "report.html"
    """HTML file to write"""
    overwrite: bool = False
    """replace the file if it exists"""
    trust: bool = False
    """import the presets of the runs that are algo=module:function, although they may be somebody
    else's; your own need no trust"""

    def __post_init__(self) -> None:
        check_settings(self)


def report(named: Sequence[str | Path], options: ReportOptions) -> Path:
    """Write the page about the runs ``named``, or those of a sweep's directory; return its path.

    Raises:
        ValueError: bokeh is not installed, a run cannot be read, none has finished a game, or
            ``out`` is in the way.
        OSError: ``out`` could not be written.
    """
    out = Path(options.out)
    check_output(out, (".html",), overwrite=options.overwrite)
    runs = find_runs([Path(each) for each in named])
    curves, unfinished = [], []
    for run in runs:
        try:
            curves.append(read_curve(run, options.x, trust=options.trust))
        except NoValueError as error:
            unfinished.append(run)
            if len(unfinished) == len(runs):
                raise ValueError(f"no run has finished a game yet: {error}") from error
    groups = make_groups(curves, options.x)
    nonce = secrets.token_hex(16)
    scripts, figures = _draw(groups, options.x, nonce)
    shown = [run for group in groups for run in group.runs]
    left_out = [run.name for group in groups for run in group.left_out]
    parts = [
        _headline(groups, options.x),
        *figures,
        _scores(groups, options.x),
        _time_split(shown),
        _film(shown),
        _options_table(shown, trust=options.trust),
        _note("Left out, since newer runs have the same options and seed", left_out),
        _note("Left out, since no game has ended yet", [run.name for run in unfinished]),
    ]
    write_whole(out, _page("".join(parts), scripts, nonce).encode())
    return out


def find_runs(named: Sequence[Path]) -> list[Path]:
    """Return the run directories ``named``, in place of each sweep's its runs.

    Raises:
        ValueError: none is named, or one twice.
    """
    runs: list[Path] = []
    for folder in named:
        inner = sorted(path.parent for path in folder.glob("runs/*/config.yaml"))
        is_sweep = not (folder / "config.yaml").exists() and inner
        runs += inner if is_sweep else [folder]
    if not runs:
        raise ValueError(
            "no run is named; name run directories or a sweep's, as in runs/pong-a2c-*"
        )
    resolved = [run.resolve() for run in runs]
    for run, path in zip(runs, resolved, strict=True):
        if resolved.count(path) > 1:
            raise ValueError(f"{run} is named twice")
    return runs


def _headline(groups: Sequence[Group], axis: str) -> str:
    """The best group of each environment, in a sentence."""
    lines = []
    for env in dict.fromkeys(group.env for group in groups):
        of_env = [group for group in groups if group.env == env]
        best = max(of_env, key=lambda group: float(group.mean[-1]))
        what = f"{escape(best.label)} " if len(of_env) > 1 else ""
        among = f", the best of {len(of_env)} settings" if len(of_env) > 1 else ""
        lines.append(
            f"<p class='lead'><b>{escape(env)}</b>: {what}scores <b>{_score(best)}</b> after "
            f"{format_x(best.x[-1], axis)} {axis}{among}.</p>"  # type: ignore[arg-type]
        )
    return "".join(lines)


def _score(group: Group) -> str:
    mean, half = float(group.mean[-1]), float(group.half_width[-1])
    return f"{mean:,.2f}" + ("" if math.isnan(half) else f"\xa0±\xa0{half:,.2f}")


def _draw(groups: Sequence[Group], axis: str, nonce: str) -> tuple[str, list[str]]:
    """The scripts of the page, and a figure for each environment."""
    try:
        embed, resources = import_module("bokeh.embed"), import_module("bokeh.resources")
    except ModuleNotFoundError as error:
        raise ValueError(missing_package("report", "report", error)) from error
    envs = dict.fromkeys(group.env for group in groups)
    drawn = [_curves([group for group in groups if group.env == env], axis) for env in envs]
    script, divisions = embed.components([plot for plot, _ in drawn])
    inline = resources.Resources(mode="inline", components=["bokeh"])
    code = "\n".join(inline.js_raw)
    head = f'<script nonce="{nonce}">{code}</script>'
    script = script.strip().replace("<script", f'<script nonce="{nonce}"', 1)
    script += f'<script nonce="{nonce}">{_CHOOSE_LINES}</script>'
    hint = (
        "<p class='hint'>Thick lines are means over the seeds, bands their 95 % intervals (from "
        "three seeds on). Untick a name to hide its lines; point at a line for its numbers.</p>"
    )
    titles = [f"<h2>Learning curves: {escape(env)}</h2>" for env in envs]
    choices = [choice for _, choice in drawn]
    return head + script, [
        title + division + choice + hint
        for title, division, choice in zip(titles, divisions, choices, strict=True)
    ]


def _curves(groups: Sequence[Group], axis: str) -> tuple[Any, str]:
    """A figure, and below it a box to tick for each group and each seed."""
    models: Any = import_module("bokeh.models")
    plot: Any = import_module("bokeh.plotting").figure(
        height=420,
        sizing_mode="stretch_width",
        tools="pan,box_zoom,wheel_zoom,reset,save",
        toolbar_location="above",
        x_axis_label=axis,
        y_axis_label=f"score (mean of the last {EPISODE_WINDOW} games)",
    )
    plot.toolbar.logo = None
    plot.toolbar.active_scroll = None
    choices = ""
    lines: list[Any] = []
    are_named = sum(len(group.seeds) for group in groups) <= _MOST_NAMED
    for number, group in enumerate(groups):
        colour = COLOURS[number % len(COLOURS)]
        own: list[Any] = []
        if len(group.seeds) > 2:
            low, high = group.mean - group.half_width, group.mean + group.half_width
            own.append(plot.varea(group.x, low, high, color=colour, alpha=0.2))
        thin = []
        for seed, y in zip(group.seeds, group.y, strict=True):
            if len(group.seeds) > 1:
                source = _source(group, f"seed {seed}", y)
                thin.append(plot.line("x", "y", source=source, color=colour, alpha=0.55))
        mean = "mean" if thin else f"seed {group.seeds[0]}"
        source = _source(group, mean, group.mean)
        own.append(plot.line("x", "y", source=source, color=colour, line_width=3))
        lines += [*thin, own[-1]]
        boxes = [_choice(group.label, colour, own)]
        if are_named:
            for seed, line in zip(group.seeds, thin, strict=False):
                boxes.append(_choice(f"seed {seed}", f"{colour}8c", [line]))
        elif thin:
            boxes.append(_choice(f"its {len(thin)} seeds", f"{colour}8c", thin))
        choices += f"<div class='choices'>{''.join(boxes)}</div>"
    digits = "0.0" if axis == "minutes" else "0,0"
    tips = [("", "@run"), (axis, f"@x{{{digits}}}"), ("score", "@y{0,0.00}")]
    plot.add_tools(models.HoverTool(renderers=lines, tooltips=tips))
    plot.xaxis.formatter = models.NumeralTickFormatter(
        format="0" if axis == "minutes" else "0.[0]a"
    )
    plot.x_range.start = 0
    plot.grid.grid_line_color = "#e3e3e3"
    plot.outline_line_color = None
    return plot, choices


_CHOOSE_LINES = """
for (const box of document.querySelectorAll("input[data-lines]"))
  box.addEventListener("change", () => {
    for (const id of box.dataset.lines.split(" "))
      for (const page of Bokeh.documents)
        if (page.get_model_by_id(id)) page.get_model_by_id(id).visible = box.checked
  })
"""


def _choice(name: str, colour: str, lines: Sequence[Any]) -> str:
    """A box that shows and hides ``lines``; a browser that reloads the page ticks it again."""
    ids = " ".join(line.id for line in lines)
    return (
        f"<label><input type='checkbox' checked autocomplete='off' data-lines='{ids}'>"
        f"<span class='key' style='background:{colour}'></span>{escape(name)}</label>"
    )


def _source(group: Group, which: str, y: Any) -> Any:
    run = f"{group.label}, {which}"
    return import_module("bokeh.models").ColumnDataSource(
        {"x": group.x, "y": y, "run": np.full(len(y), run)}
    )


def _scores(groups: Sequence[Group], axis: str) -> str:
    rows = []
    for group in sorted(groups, key=lambda each: (each.env, -float(each.mean[-1]))):
        last = group.y[:, -1]
        rows.append(
            (
                *(group.env, group.label, ", ".join(map(str, group.seeds)), _score(group)),
                f"{last.min():,.2f} to {last.max():,.2f}",
                format_x(group.x[-1], axis),  # type: ignore[arg-type]
            )
        )
    head = ("environment", "runs", "seeds", "score ± 95 %", "range", axis)
    note = (
        f"<p class='hint'>Score: raw, mean of the last {EPISODE_WINDOW} games, then mean over the "
        "seeds. Interval: Student's t over the seeds.</p>"
    )
    return "<h2>Final scores</h2>" + _table(head, rows) + note


def _time_split(runs: Sequence[Path]) -> str:
    """A bar for each run; what is no part of its own is `other`."""
    bars = []
    for run in runs:
        rows = read_rows(run / "metrics.csv", "training_seconds")
        found = {name: [row[name] for row in rows if name in row] for name in _PARTS}
        shares = {name: float(np.nanmean(values)) for name, values in found.items() if values}
        if not shares:
            continue
        parts = [(*_PARTS[name], max(0.0, share)) for name, share in shares.items()]
        parts.append(("other", "#9a9a9a", max(0.0, 1 - sum(shares.values()))))
        pieces = "".join(
            f"<span style='background:{colour};width:{share:.2%}' title='{what} {share:.0%}'>"
            f"{f'{share:.0%}' if share > 0.07 else ''}</span>"
            for what, colour, share in parts
        )
        speed = rows[-1]["steps"] / max(rows[-1]["training_seconds"], 1e-9)
        bars.append(
            f"<tr><td>{escape(run.name)}</td><td class='bar'><div>{pieces}</div></td>"
            f"<td class='number'>{speed:,.0f} steps/s</td></tr>"
        )
    if not bars:
        return ""
    colours = [*_PARTS.values(), ("other", "#9a9a9a")]
    keys = "".join(
        f"<span><span class='key' style='background:{colour}'></span>{what}</span>"
        for what, colour in colours
    )
    table = f"<table class='wide'>{''.join(bars)}</table>"
    return f"<h2>Where the time went</h2><div class='choices'>{keys}</div>{table}"


def _film(runs: Sequence[Path]) -> str:
    """The first film that is there and small, as pictures that every browser shows."""
    for run in runs:
        for path in (run / "game.mp4", run / "game.gif"):
            if path.is_file() and path.stat().st_size <= MOST_FILM_BYTES:
                shown, rate = read_pictures(path)
                if pictures := list(shown):
                    data = base64.b64encode(to_webp(pictures, rate)).decode()
                    return (
                        f"<h2>A game of {escape(run.name)}</h2>"
                        f"<img class='film' alt='a game' src='data:image/webp;base64,{data}'>"
                    )
    return ""


def _options_table(runs: Sequence[Path], *, trust: bool) -> str:
    """What differs between the runs, then all options that they share."""
    configs = [read_config(run, trust=trust) for run in runs]
    options = [
        {option.key: exact_text(option.default) for option in list_options(config)}
        for config in configs
    ]
    keys = list(dict.fromkeys(key for each in options for key in each))
    values = {key: [each.get(key, "") for each in options] for key in keys}
    differing = [key for key in keys if len(set(values[key])) > 1]
    text = ""
    if differing:
        head = ("option", *(run.name for run in runs))
        rows = [(key, *values[key]) for key in differing]
        text = "<h2>What differs between the runs</h2>" + _table(head, rows)
    shared = [(key, values[key][0]) for key in keys if key not in differing]
    every = _table(("option", "value"), shared)
    summary = f"<summary>{len(shared)} options that all runs share</summary>"
    return f"{text}<h2>Configuration</h2><details>{summary}{every}</details>"


def _note(why: str, names: Sequence[str]) -> str:
    return f"<p class='hint'>{why}: {escape(', '.join(names))}</p>" if names else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(each)}</th>" for each in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in rows
    )
    return f"<div class='scroll'><table><tr>{top}</tr>{body}</table></div>"


_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#222;max-width:1100px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em;margin-bottom:0}h2{font-size:1.15em;margin-top:2em}
.lead{font-size:1.2em;margin:.4em 0}.hint,footer{color:#666;font-size:.85em}
table{border-collapse:collapse}td,th{padding:.25em .9em .25em 0;text-align:left;vertical-align:top}
tr+tr td{border-top:1px solid #e3e3e3}th{font-weight:600}.scroll{overflow-x:auto}
td{overflow-wrap:break-word;max-width:28em}.wide{width:100%}.number{white-space:nowrap}
.bar{width:60%}.bar div{display:flex;min-width:100%}.bar span{color:#fff;font-size:.8em;
height:1.8em;line-height:1.8em;text-align:center;overflow:hidden}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
.choices{display:flex;flex-wrap:wrap;gap:.2em 1.2em;margin:.4em 0}.choices input{margin:0 .4em 0 0}
.choices label{overflow-wrap:anywhere;cursor:pointer}
.film{max-width:100%;min-width:240px;image-rendering:pixelated}summary{cursor:pointer}
@media(max-width:600px){.wide tr,.wide td{display:block;width:auto;padding-right:0}
.wide tr+tr td{border:0}.wide .number{margin-bottom:.6em}}
"""


def _page(body: str, scripts: str, nonce: str) -> str:
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data:"
    )
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        "<meta name='viewport' content='width=device-width'>"
        f"<title>accel_rl report</title><style>{_STYLE}</style></head><body>"
        f"<h1>Report</h1>{body}<footer>accel_rl {__version__}, {made}</footer>{scripts}"
        "</body></html>\n"
    )
