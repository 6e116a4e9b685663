"""Trackers of a user's own: one that writes what it gets, and others that fail in each way."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any


class Keeper:
    """Appends each call to ``tracked.jsonl`` in the run's directory."""

    def __init__(self, run_dir: Path, config: dict[str, Any], group: str | None) -> None:
        self.path = run_dir / "tracked.jsonl"
        self.note("start", config["env"], group)

    def note(self, *what: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(what) + "\n")

    def log(self, values: dict[str, float], steps: int) -> None:
        self.note("row", steps, values)

    def add_file(self, path: Path) -> None:
        self.note("file", path.name)

    def close(self) -> None:
        self.note("close")


class Raising(Keeper):
    def log(self, values: dict[str, float], steps: int) -> None:
        raise ConnectionError("the server\nis gone")


class Hanging(Keeper):
    def log(self, values: dict[str, float], steps: int) -> None:
        time.sleep(3600)


class Dying(Keeper):
    def log(self, values: dict[str, float], steps: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
