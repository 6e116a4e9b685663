"""What a measurement was made on: written beside every figure."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from accel_rl.system.topology import available_cpus, physical_cores

PACKAGES = ("accel_rl", "ale-py", "gymnasium", "numpy", "opencv-python-headless", "torch")


def usable_cores() -> list[list[int]]:
    """The CPUs of each core that this process may use."""
    return [list(core.cpus) for core in physical_cores(available_cpus())]


def describe_machine(cores: list[list[int]]) -> dict[str, Any]:
    """Hardware, load, versions, command line; ``cores``: the CPUs used of each core."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "commit": _commit(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "cores_used": cores,
        "gpus": _gpus(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load_average": os.getloadavg(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """As the driver names them; without torch, which some benchmarks must not load."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.strip().splitlines()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    folder = Path(__file__).parent
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None  # an installed copy, without a repository
    return done.stdout.strip()
