"""The launcher of several learners, with other programs in their place."""

import os
import signal
import subprocess
from typing import Any

import pytest
from launched_runs import started

from accel_rl.cli.launcher import _Watch
from accel_rl.parallel import MachineStore


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_learner_that_a_signal_ended_before_python_handled_it_was_stopped(number, capfd) -> None:
    """Batch systems signal all processes of a job, maybe the learners before the launcher."""
    handles = "signal.signal(15, lambda *_: sys.exit(143)); print(flush=True); time.sleep(60)"
    program = f"import signal, sys, time; {handles}"
    early = subprocess.Popen(["sleep", "60"])
    received, writing = os.pipe()
    try:
        early.send_signal(number)
        with started("-c", program, is_warm=False) as later:
            assert later.stdout is not None and later.stdout.readline()
            learners: Any = [later, early]
            watch = _Watch(learners, MachineStore(), received=received)
            assert watch.until_end() == 143
    finally:
        early.kill()
        early.wait()
        os.close(received)
        os.close(writing)
    assert capfd.readouterr().err == ""
