"""Packages a saved run: ``python launch/package.py RUN`` (``--help`` lists options)."""

import sys

from accel_rl.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["package", *sys.argv[1:]]))
