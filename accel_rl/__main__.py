"""``python -m accel_rl``: the same as ``launch/train.py``, from wherever accel_rl is installed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains as the arguments say; returns the exit code.

    0: finished. 1: refused or failed, with one message on standard error. 130, 143: stopped by
    Ctrl-C or SIGTERM, results saved.
    """
    # OpenMP reads this when torch loads it. By default its idle threads spin for long, on cores
    # that the simulators need: on a busy machine that made training ten times slower. A spin of a
    # few microseconds still bridges the gaps between one operation and the next.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    try:
        # Loading torch takes a second or two, in which Ctrl-C shall be as quiet as later.
        from accel_rl.training.run import run

        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
