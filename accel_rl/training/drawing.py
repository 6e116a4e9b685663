"""Pictures that runs and sweeps leave beside their tables: a picture that fails ends neither."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path

_LOGGER = logging.getLogger(__name__)


def draw_or_warn(draw: Callable[[], object], path: Path) -> bool:
    """Call ``draw``, which draws the picture ``path``; log a warning and return False if it fails.

    Matplotlib is to be imported in ``draw``, since its import may fail, too.
    """
    try:
        draw()
    except Exception as error:
        _LOGGER.warning("%s was not drawn: %s: %s", path, type(error).__name__, error)
        _LOGGER.info("%s", traceback.format_exc())
        return False
    return True
