"""Trains many agents: ``python launch/sweep.py algo=a2c,ppo env=pong seed=0,1,2`` (``--help``)."""

import sys

from accel_rl.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["sweep", *sys.argv[1:]]))
