"""The console that runs and tools print on, which outlives its reader."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from accel_rl.system.console import FULL, GONE, discard, printable


class LastingConsole(Console):
    """A console that falls silent without a reader, where rich ends the program or fails."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_text = segment.control is None
            yield segment._replace(text=printable(segment.text)) if is_text else segment

    def on_broken_pipe(self) -> None:
        self._fall_silent()

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        try:
            super().__exit__(exc_type, exc_value, traceback)  # every way of printing comes here
        except OSError as error:
            if error.errno in FULL:
                with contextlib.suppress(OSError):
                    print(f"output is cut off here: {error.strerror}", file=sys.stderr)
            elif error.errno not in GONE:
                raise
            self._fall_silent()

    def _fall_silent(self) -> None:
        self.quiet = True
        discard(self.file)
