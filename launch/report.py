"""Makes a page about saved runs: ``python launch/report.py RUN...`` (``--help`` lists options)."""

import sys

from accel_rl.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["report", *sys.argv[1:]]))
