"""Draws learning curves: ``python launch/plot.py RUN...`` (``--help`` lists options)."""

import sys

from accel_rl.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["plot", *sys.argv[1:]]))
