"""Empty figures and their PNG files, drawn by Matplotlib's Agg without pyplot.

All of Matplotlib that accel_rl uses is imported through this module, because ``import matplotlib``
fails where the environment variable MPLBACKEND names a backend that is not installed. Notebooks set
that variable for every program that they start.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress


def _import_matplotlib() -> None:
    """Import Matplotlib without MPLBACKEND; a backend that is there is set afterwards."""
    if "matplotlib" in sys.modules:  # the host's choice of a backend stays
        return
    named = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if named is not None:
            os.environ["MPLBACKEND"] = named
    if named:
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = named  # for what the host may draw by pyplot


_import_matplotlib()

from matplotlib.axes import Axes  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import EngFormatter, MaxNLocator  # noqa: E402

__all__ = [
    "COLOURS",
    "Axes",
    "EngFormatter",
    "Figure",
    "MaxNLocator",
    "new_figure",
    "plain",
    "to_png",
]

COLOURS = ("#1f6f8b", "#c8553d", "#5b8c3a", "#7b4f9d", "#b8860b", "#3a4f8c", "#a23b72", "#555555")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; ``width`` and ``height`` are in inches."""
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(text: str) -> str:
    """Return ``text`` so that Matplotlib shows it as it is: dollar signs begin no formula."""
    return text.replace("$", r"\$")


def to_png(figure: Figure) -> memoryview:
    """Return ``figure`` as the bytes of a PNG file.

    Raises:
        ValueError: Matplotlib cannot draw it, as with settings of the user's that need LaTeX.
    """
    buffer = io.BytesIO()
    try:
        figure.savefig(buffer, format="png")
    except Exception as error:
        raise ValueError(
            f"Matplotlib cannot draw this picture ({type(error).__name__}: {error}); look at its "
            "settings, in the file matplotlibrc"
        ) from error
    return buffer.getbuffer()
