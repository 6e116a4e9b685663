"""The directory of a run: its name, its resolved config and its log."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import psutil
import torch
from omegaconf import OmegaConf

from accel_rl import __version__
from accel_rl.config import TrainConfig
from accel_rl.runs.files import naming, no_link
from accel_rl.runs.yaml_file import write_yaml
from accel_rl.system.console import printable
from accel_rl.system.topology import available_cpus, cpu_info

LOGGER = logging.getLogger("accel_rl")


def run_place(config: TrainConfig) -> Path:
    """Return the directory that a run goes on in, or is to be made or has its own in, absolute.

    This is asked once, before anything can change the working directory.
    """
    given = Path(config.resume or config.run_dir or "runs")
    with contextlib.suppress(FileNotFoundError):  # of a deleted directory, which others tell
        return given.absolute()
    return given


def make_run_directory(config: TrainConfig, now: datetime, place: Path) -> Path:
    """Make ``run_dir``, or ``runs/<env>-<algo>-<seed>-<time>`` if none is given.

    ``place``: what `run_place` has returned.
    """
    if config.run_dir is None:
        return _make_new(config, now, place)
    refuse_used(place, makes=True)
    return place


def refuse_used(path: Path, *, makes: bool = False) -> None:
    """Raise ValueError if ``path`` is not empty, or cannot be made if this ``makes`` it."""
    try:
        if makes:
            path.mkdir(parents=True, exist_ok=True)
        is_used = os.path.lexists(path) and any(path.iterdir())
    except OSError as error:
        raise ValueError(
            f"run_dir={path} cannot be used: {error.strerror}; choose another"
        ) from error
    if is_used:
        raise ValueError(
            f"run_dir={path} is not empty, and a run never overwrites another; "
            "choose another, or leave it out for a new one"
        )


def _make_new(config: TrainConfig, now: datetime, runs: Path) -> Path:
    env, algo = (_plain(each) for each in (config.env, config.algo))
    base = runs / f"{env}-{algo}-{config.seed}-{now:%Y%m%d-%H%M%S}"
    for number in itertools.count(1):
        path = base if number == 1 else base.with_name(f"{base.name}-{number}")
        try:
            if not os.path.lexists(base.parent):  # a link that leads nowhere is there, too
                base.parent.mkdir(exist_ok=True)
            path.mkdir()
        except FileExistsError:  # of a run that began in the same second
            continue
        except OSError as error:
            raise ValueError(
                f"runs/ cannot be made here: {error.strerror}; choose a place with run_dir=..."
            ) from error
        return path
    raise AssertionError("unreachable")


def _plain(name: str) -> str:
    """Return ``name`` without characters that have a meaning in paths."""
    return "".join(c if c.isalnum() or c in "._" else "-" for c in name)


def describe_machine(device: torch.device) -> str:
    """Return versions, hardware, load and command, without which no speed can be compared."""
    gpu = f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
    processor = cpu_info("model name") or platform.processor()
    return (
        f"accel_rl {__version__}{_commit()}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {platform.platform()}, {processor}, "
        f"{len(available_cpus())} CPUs{gpu}, load {psutil.getloadavg()[0]:.1f}; "
        f"command: {shlex.join(sys.orig_argv)}"
    )


def _commit() -> str:
    """Return the commit in brackets if this is a checkout."""
    git, head = Path(__file__).parents[2] / ".git", ""
    with suppress(OSError):
        head = (git / "HEAD").read_text().strip()
        if head.startswith("ref: "):
            name, head = head.removeprefix("ref: "), ""
            head = (git / name).read_text()
    return f" ({head[:8]})" if head else ""


def write_config(config: TrainConfig, path: Path, *, signed: bool = True) -> None:
    """Write the resolved config as signed YAML, every option in it but ``resume``, ``trust``."""
    write_yaml(path, plain_options(config), signed=signed)


def plain_options(config: TrainConfig) -> dict[str, Any]:
    """Return all options of ``config`` as dictionaries, lists, numbers and text."""
    written = OmegaConf.structured(dataclasses.replace(config, resume=None, trust=False))
    plain: Any = OmegaConf.to_container(written)
    return dict(plain)


@contextmanager
def hold(run_dir: Path) -> Iterator[None]:
    """Keep other processes from training in ``run_dir`` within.

    Nothing keeps them from it on Windows.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    try:
        descriptor = os.open(run_dir, os.O_RDONLY)
    except OSError as error:
        raise ValueError(f"{run_dir} cannot be opened: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"{run_dir} is in use: another process trains in it; stop that one first"
            ) from error
        except OSError:
            pass  # the file system has no locks
        yield
    finally:
        os.close(descriptor)


class _LogFile(logging.FileHandler):
    """Keeps quiet where it cannot be written: the disk is full, and metrics or checkpoints tell.

    A link is not followed.
    """

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=no_link)

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:
        pass


@contextmanager
def log_to(path: Path, *others: logging.Handler) -> Iterator[None]:
    """Write what accel_rl logs to the file at ``path`` within, and send warnings to ``others``."""
    with naming(path):
        handler = _LogFile(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level, propagate = LOGGER.level, LOGGER.propagate
    for other in others:
        other.setLevel(logging.WARNING)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False  # a host's own handlers would print each line once more
    for each in (handler, *others):
        LOGGER.addHandler(each)
    try:
        yield
    finally:
        for each in (handler, *others):
            LOGGER.removeHandler(each)
        LOGGER.setLevel(level)
        LOGGER.propagate = propagate
        with contextlib.suppress(OSError):  # what fails first says so, not the log of it
            handler.close()
