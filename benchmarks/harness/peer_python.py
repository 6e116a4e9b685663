"""Who is installed to be measured beside ours, and in which interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping

from rich.console import Console

TIMEOUT_SECONDS = 120.0
PROBE = """
import importlib, json, sys
found = []
for peer, names in json.loads(sys.argv[1]).items():
    try:
        for name in names.split(", "):
            importlib.import_module(name)
    except Exception:
        continue
    found.append(peer)
print("\\n" + json.dumps(found))
"""


def find_peers(
    packages: Mapping[str, str], chosen: Iterable[str], peer_python: str | None, console: Console
) -> dict[str, str]:
    """The interpreter of each peer ``chosen``; those that none has are noted and left out.

    ``packages``: what has to be importable for each, several separated by a comma and a blank.
    ``peer_python``: interpreters to look in after this one, separated as in PATH; a peer is taken
    from the first that has it.

    Raises:
        SystemExit: a peer of that name is not known, or an interpreter does not exist.
    """
    chosen = list(chosen)
    if unknown := set(chosen) - set(packages):
        raise SystemExit(f"peers={sorted(unknown)} is not known; choose among {sorted(packages)}")
    found: dict[str, str] = {}
    for python in [sys.executable, *interpreters(peer_python)]:
        missing = {peer: packages[peer] for peer in chosen if peer not in found}
        if not missing:
            break
        command = [python, "-c", PROBE, json.dumps(missing)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
            found |= dict.fromkeys(json.loads(done.stdout.splitlines()[-1]), python)
        except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
            raise SystemExit(f"peer_python names {python}, which is no Python") from None
    for peer in chosen:
        if peer not in found:
            text = f"{peer} is left out: no interpreter has {packages[peer]}; see peer_python"
            console.print(text, highlight=False)
    return {peer: found[peer] for peer in chosen if peer in found}


def interpreters(peer_python: str | None) -> list[str]:
    """Those that the option names."""
    return [each for each in (peer_python or "").split(os.pathsep) if each]
