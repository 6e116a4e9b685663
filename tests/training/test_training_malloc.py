"""The allocator's setting: it does what it is for, and only where it can."""

import os
import platform
import subprocess
import sys

import pytest

from accel_rl.training import torch_setup

FAULTS_PER_BLOCK = """
import resource, sys
import numpy as np
from accel_rl.training.torch_setup import tune_malloc
if sys.argv[1] == "tuned":
    assert tune_malloc()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for number in range(20):
    if number == 10:
        before = faults()
    block = np.empty(40_000_000, np.uint8)
    block.fill(1)
    del block
print((faults() - before) / 10)
"""


def page_faults(mode: str) -> float:
    """Page faults for each block of 40 MB that a process allocates, fills and frees."""
    environment = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0"}
    command = [sys.executable, "-c", FAULTS_PER_BLOCK, mode]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return float(result.stdout)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc alone")
def test_freed_blocks_are_used_again_without_page_faults() -> None:
    assert page_faults("plain") > 1000
    assert page_faults("tuned") < 10


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(torch_setup, "ctypes", None)  # any use of it would fail
    assert torch_setup.tune_malloc() is False
