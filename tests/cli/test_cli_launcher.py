"""The launcher of several learners, with other programs in their place."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore

from accel_rl.cli.launcher import _Watch
from accel_rl.parallel.records import Records


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_learner_that_a_signal_ended_before_python_handled_it_was_stopped(number, capfd) -> None:
    """Batch systems signal all processes of a job, maybe the learners before the launcher."""
    handles = "signal.signal(15, lambda *_: sys.exit(143)); print(flush=True); time.sleep(60)"
    program = f"import signal, sys, time; {handles}"
    later = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert later.stdout is not None and later.stdout.readline()
    early = subprocess.Popen(["sleep", "60"])
    early.send_signal(number)
    received, writing = os.pipe()
    try:
        keys: Any = SimpleNamespace(are_read=False)
        records = Records(HashStore(), None)
        watch = _Watch([later, early], records, goes_on=False, received=received, keys=keys)
        assert watch.until_end() == 143
    finally:
        for learner in (later, early):
            learner.kill()
            learner.wait()
        later.stdout.close()
        os.close(received)
        os.close(writing)
    assert capfd.readouterr().err == ""
