"""Trackers of a user's own: one that writes what it gets, and others that fail."""

import json
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


class Failing(Keeper):
    """Raises an error instead of one of the calls."""

    def __init__(self, failing: str) -> None:
        self.failing = failing

    def note(self, what: object, *more: object) -> None:
        if what == self.failing:
            raise ConnectionError("the server\nis gone")


def fails_in_make(*about: Any) -> Any:
    raise ConnectionError("the server\nis gone")


def fails_in_log(*about: Any) -> Any:
    return Failing("row")


def fails_in_close(*about: Any) -> Any:
    return Failing("close")
