"""Programs that are started without standard input, output or error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import PROCESSES, SLOW, slow

from accel_rl.envs.catch import Catch

REPOSITORY = Path(__file__).parents[2]


class Chatty(Catch):
    """Prints without end, straight to descriptors 1 and 2."""

    def step(self, action, out):  # type: ignore[no-untyped-def]
        for descriptor in (1, 2):
            os.write(descriptor, b"x" * 64)
        return super().step(action, out)


def chatty() -> Chatty:
    return Chatty()


def start_without(closed: str, folder: Path, *command: str) -> "subprocess.CompletedProcess[bytes]":
    """``closed``: as a shell writes it."""
    paths = f"{REPOSITORY}{os.pathsep}{os.environ['PYTHONPATH']}"
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=220,
    )


@PROCESSES
@pytest.mark.parametrize(
    "closed", ["<&- >&- 2>&-", *(slow(each) for each in ("<&-", ">&-", "2>&-"))]
)
def test_closed_descriptors_are_opened_and_inherited(closed: str, tmp_path) -> None:
    code = (
        "import os, subprocess, sys\n"
        "from accel_rl.system.processes import open_standard_descriptors\n"
        "open_standard_descriptors()\n"
        "places = [os.readlink(f'/proc/self/fd/{n}') for n in range(3)]\n"
        "assert None not in (sys.stdin, sys.stdout, sys.stderr)\n"
        "print(), sys.stdout.flush(), sys.stderr.flush()\n"
        "child = 'import os; [os.fstat(n) for n in range(3)]'\n"
        "subprocess.run([sys.executable, '-c', child], check=True)\n"
        "new = os.open('/dev/null', os.O_RDONLY)\n"
        "assert new > 2\n"
        "number = {'<': 0, '>': 1, '2': 2}[sys.argv[1][0]]\n"
        "assert places[number] == '/dev/null'\n"
    )
    assert start_without(closed, tmp_path, "-c", code, closed).returncode == 0


@SLOW
@PROCESSES
@pytest.mark.parametrize("closed", ["<&-", pytest.param(">&- 2>&-", marks=pytest.mark.nightly)])
def test_run_without_standard_descriptors_trains(closed: str, tmp_path) -> None:
    options = ["env=test_processes_descriptors:chatty", "total_steps=400", "run_dir=run"]
    done = start_without(
        closed, tmp_path, "-m", "accel_rl", "train", *options, "decorrelation_steps=0"
    )
    assert done.returncode == 0
    assert "finished" in (tmp_path / "run" / "train.log").read_text()


@SLOW
@PROCESSES
def test_workers_of_a_host_without_standard_output_write_into_nothing_else(tmp_path) -> None:
    code = (
        "from contextlib import closing\n"
        "import numpy as np\n"
        "from accel_rl.vector import VectorEnv\n"
        "from test_processes_descriptors import chatty\n"
        "if __name__ == '__main__':\n"
        "    with closing(VectorEnv(chatty, num_envs=2, num_groups=1)) as envs:\n"
        "        envs.reset()\n"
        "        for _ in range(50):\n"
        "            observation, *_ = envs.step(np.zeros(2, np.int64))\n"
        "            assert observation.max() <= 1, observation\n"
    )
    assert start_without(">&- 2>&-", tmp_path, "-c", code).returncode == 0
