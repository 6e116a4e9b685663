"""A sweep whose runs use a GPU."""

import subprocess
import sys

PROGRAM = """
import sys
import torch
from accel_rl.__main__ import main
assert main(sys.argv[1:]) == 0
assert not torch.cuda.is_initialized()
"""


def test_two_runs_share_a_gpu_and_the_sweep_itself_takes_none(tmp_path) -> None:
    options = ["env=catch", "device=cuda", "total_steps=640", "decorrelation_steps=0"]
    command = ["sweep", *options, "seed=0,1", "slots=2", f"sweep_dir={tmp_path / 'sweep'}"]
    subprocess.run([sys.executable, "-c", PROGRAM, *command], check=True)
    for seed in (0, 1):
        log = tmp_path / "sweep" / "runs" / f"catch-a2c-{seed}" / "train.log"
        assert "on cuda" in log.read_text()
