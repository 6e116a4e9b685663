"""Training in a process that was forked from one that has computed with torch's threads."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing, sys, torch
from accel_rl.cli.parse import parse_arguments
from accel_rl.training.train import train

def child():
    train(parse_arguments(sys.argv[1:]))

torch.set_num_threads(2)
(torch.randn(500, 500, requires_grad=True) @ torch.randn(500, 500)).sum().backward()
process = multiprocessing.get_context("fork").Process(target=child)
if __name__ == "__main__":
    process.start()
    process.join(60)
    process.kill()  # one that hangs would outlive this process
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.processes
@pytest.mark.slow
def test_training_ends_and_says_that_it_has_one_thread(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    options = ["env=catch", "num_workers=0", "total_steps=2000", f"run_dir={tmp_path / 'run'}"]
    command = [sys.executable, str(script), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "this process was forked" in done.stdout
