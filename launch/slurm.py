"""Submits runs and sweeps to Slurm: ``python launch/slurm.py slurm.gpus=8 ...`` (``--help``)."""

import sys

from accel_rl.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["slurm", *sys.argv[1:]]))
