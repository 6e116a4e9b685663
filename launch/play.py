"""Films a game of a saved run: ``python launch/play.py RUN`` (``--help`` lists options)."""

import sys

from accel_rl.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["play", *sys.argv[1:]]))
