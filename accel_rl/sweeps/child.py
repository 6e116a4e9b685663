"""What becomes a run of a sweep: ``python -m accel_rl.sweeps.child LIFE CPUS OPTION...``.

The kernel kills it when the sweep is gone, as it kills workers when their server is: by the read
end of the life pipe, also a process that is stuck. A run that ends so goes on from its last
checkpoint when the sweep is resumed. That and the mask of CPUs stay over the exec.
"""

from __future__ import annotations

import os
import sys

from accel_rl.system.processes import die_with_server


def main() -> None:
    life, cpus, *arguments = sys.argv[1:]
    die_with_server(int(life), os.getpid())
    os.sched_setaffinity(0, map(int, cpus.split(",")))
    os.execv(sys.executable, [sys.executable, "-P", "-m", "accel_rl", "train", *arguments])


if __name__ == "__main__":
    main()
