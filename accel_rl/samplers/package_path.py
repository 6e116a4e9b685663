"""How processes that are started here find this package, and not the user's files instead.

They are started with ``-P``: no module of the working directory may hide one of the standard
library. Then a package that is not installed has to be named.
"""

from __future__ import annotations

import os
from pathlib import Path

import accel_rl

PACKAGE_PARENT = str(Path(accel_rl.__file__).parents[1])
"""the directory in which this package lies"""
VARIABLE = "PYTHONPATH"


def add_package_path(environment: dict[str, str]) -> None:
    """Put the package in front of the module search path that ``environment`` has."""
    path = environment.get(VARIABLE, "")
    if path.partition(os.pathsep)[0] != PACKAGE_PARENT:
        environment[VARIABLE] = os.pathsep.join(filter(None, [PACKAGE_PARENT, path]))


def forget_package_path() -> None:
    """Take that out of this process's variables again, which programs started here inherit."""
    first, _, rest = os.environ.get(VARIABLE, "").partition(os.pathsep)
    if first == PACKAGE_PARENT:
        del os.environ[VARIABLE]
        if rest:
            os.environ[VARIABLE] = rest
