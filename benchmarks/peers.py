"""Who is installed to be measured beside ours, and in which interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping

from rich.console import Console


def find_peers(
    packages: Mapping[str, str], chosen: Iterable[str], peer_python: str | None, console: Console
) -> dict[str, str]:
    """The interpreter of each peer ``chosen``; those that none has are noted and left out.

    ``packages``: what has to be importable for each, several separated by commas.

    Raises:
        ValueError: a peer of that name is not known.
    """
    if unknown := set(chosen) - set(packages):
        raise ValueError(f"peers={sorted(unknown)} is not known; choose among {sorted(packages)}")
    found = {}
    for peer in chosen:
        for python in filter(None, (sys.executable, peer_python)):
            command = [python, "-c", f"import {packages[peer]}"]
            if subprocess.run(command, capture_output=True).returncode == 0:
                found[peer] = python
                break
        else:
            console.print(f"{peer} is left out, since it is not installed; see peer_python")
    return found
