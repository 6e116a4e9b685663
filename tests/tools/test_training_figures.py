"""Pictures end no run: neither Matplotlib's settings nor odd names keep a command from its end."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from launched_runs import started
from rich.console import Console
from saved_runs import SMALL, quiet

from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.figures import Figure, draw_learning_curve, new_figure, plain, to_png
from accel_rl.runs.files import draw_or_warn
from accel_rl.tools.compare import Group
from accel_rl.tools.plot import draw_groups, scores_table
from accel_rl.training.train import train

INLINE = "module://matplotlib_inline.backend_inline"
FORMULA = r"$\frac{$ x_1"

EACH_COMMAND = """
from accel_rl.__main__ import main

run = ["env=catch", "total_steps=2000", "num_workers=0", "decorrelation_steps=0", "run_dir=run"]
assert main(["train", *run]) == 0
assert main(["evaluate", "run", "num_steps=20", "num_workers=0"]) == 0
assert main(["play", "run", "out=film.gif", "max_steps=9"]) == 0
assert main(["plot", "run"]) == 0
"""


def python(code: str, folder: Path, backend: str) -> tuple[int, str, str]:
    """Exit code and what it said, of a new interpreter."""
    environment = {**os.environ, "MPLBACKEND": backend}
    with started("-c", code, is_warm=False, cwd=folder, env=environment) as program:
        said, errors = program.communicate(timeout=120)
    return program.returncode, said, errors


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("backend", [INLINE, pytest.param("nonsense", marks=pytest.mark.nightly)])
def test_backend_that_is_not_installed_ends_no_command(backend: str, tmp_path) -> None:
    code, said, errors = python(EACH_COMMAND, tmp_path, backend)
    assert code == 0, errors
    assert "Traceback" not in errors and "not drawn" not in said
    for path in ("run/learning_curve.png", "learning_curves.png"):
        assert (tmp_path / path).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.processes
def test_backend_that_is_there_is_left_to_the_host(tmp_path) -> None:
    code = (
        "import os, accel_rl.runs.figures, matplotlib\n"
        "print(matplotlib.rcParams['backend'], os.environ['MPLBACKEND'])"
    )
    assert python(code, tmp_path, "svg")[1] == "svg svg\n"


def fail(*arguments: object, **options: object) -> None:
    raise RuntimeError("latex could not be found")


def test_run_whose_pictures_fail_finishes_and_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Figure, "savefig", fail)
    monkeypatch.setattr("accel_rl.training.records.CURVE_SECONDS", 0.0)
    run = f"env=catch total_steps=160 log_interval=40 run_dir={tmp_path}/run".split()
    result = train(parse_arguments([*SMALL[:3], *run]), quiet())
    assert result.status is not None and result.status.steps >= 160
    log = (tmp_path / "run" / "train.log").read_text()
    # In the middle of the run and at its end, not with each of four rows.
    assert log.count("learning_curve.png was not drawn: ") == 2
    assert "latex could not be found" in log


def test_picture_that_fails_is_a_warning_of_a_run_and_an_error_of_plot(
    tmp_path, caplog, monkeypatch
) -> None:
    path = tmp_path / "missing" / "curve.png"
    assert not draw_or_warn(lambda: draw_learning_curve(path, [], "a2c", "catch", ""), path)
    assert f"{path} was not drawn" in caplog.text
    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(ValueError, match=r"latex could not be found.*matplotlibrc"):
        to_png(new_figure(2.0, 2.0))


@pytest.mark.slow
def test_learning_curve_leaves_nothing_in_memory(tmp_path) -> None:
    def num_figures() -> int:
        return sum(type(each) is Figure for each in gc.get_objects())

    gc.collect()
    before = num_figures()
    gc.disable()
    try:
        path = tmp_path / "curve.png"
        assert draw_or_warn(lambda: draw_learning_curve(path, [], "a2c", "catch", ""), path)
        assert num_figures() == before
    finally:
        gc.enable()


def test_dollar_signs_are_no_formula(tmp_path) -> None:
    draw_learning_curve(tmp_path / "curve.png", [], FORMULA, FORMULA, FORMULA)
    figure = new_figure(2.0, 2.0)
    text = figure.suptitle(plain(FORMULA))
    assert text._preprocess_math(text.get_text()) == (FORMULA, False)


def group(name: str) -> Group:
    return Group(name, name, (0,), np.arange(2.0), np.ones((1, 2)), runs=(), left_out=())


@pytest.mark.slow
def test_names_in_plots_and_tables_are_no_formula_and_no_markup(tmp_path) -> None:
    draw_groups([group(FORMULA)], "steps", FORMULA)
    console = Console(width=100, record=True, file=quiet().file)
    console.print(scores_table([group("[/x] b")], "steps", 100, "x[/red]y"))
    shown = console.export_text()
    assert "[/x] b" in shown and "x[/red]y: mean over the runs" in shown
