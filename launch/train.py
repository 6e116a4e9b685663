"""Trains one agent: ``python launch/train.py algo=a2c env=breakout`` (``--help`` lists options)."""

import sys

from accel_rl.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
