"""Checks an environment: ``python launch/check.py env=NAME`` (``--help`` lists options)."""

import sys

from accel_rl.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["check", *sys.argv[1:]]))
