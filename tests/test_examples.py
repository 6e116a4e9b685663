"""The examples, run as a reader would, for a few seconds each: they learn."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"

# Argument, and what the last mean return must exceed; chance gives about the number behind.
RUNS = {
    "foreign_ppo.py": ("12000", 35),  # 22
    "sb3_ppo.py": ("12000", 0.5),  # -0.6
    "numpy_policy.py": ("8", 45),  # 3
    "custom_learner.py": ("200", 0.3),  # -0.6
}


def test_each_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_example_learns(name: str) -> None:
    argument, threshold = RUNS[name]
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, argument],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    *_, last = re.findall(r"mean return (-?\d+\.\d+)", done.stdout)
    assert float(last) > threshold
