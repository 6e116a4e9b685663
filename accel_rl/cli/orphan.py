"""A learner whose launcher is gone ends by itself, whatever it is doing."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time

from accel_rl.training.stopping import LAUNCHER_VARIABLE, STOP_SECONDS


def end_with_parent() -> None:
    """From now on the end of the parent process is taken for a SIGTERM, and in the end a SIGKILL.

    Launchers give their learners sessions of their own, so that no signal of a terminal and no end
    of a session reaches them, and a launcher that was killed cannot pass any on.
    """
    parent = os.pidfd_open(os.getppid())
    if os.environ.get(LAUNCHER_VARIABLE, str(os.getppid())) != str(os.getppid()):
        sys.exit(128 + signal.SIGTERM)  # it was gone before we looked

    def watch() -> None:
        select.select([parent], [], [])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(STOP_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
