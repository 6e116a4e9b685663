"""How a run with a store ends where one learner is stopped, lost or hangs: saved, and in time."""

import signal
import textwrap
from pathlib import Path

import pytest
from launched_runs import ENDLESS, SMALL, last_checkpoint, launched, wait_for
from run_files import table

STORE = (*SMALL, "sync=store", ENDLESS)

pytestmark = [pytest.mark.nightly, pytest.mark.processes]


def assert_saved_at_the_end(run_dir: Path) -> None:
    """The last row is of the last steps, whatever was saved at intervals."""
    assert last_checkpoint(run_dir)["counts"]["steps"] == int(
        table(run_dir / "metrics.csv")[-1]["steps"]
    )


def test_learner_that_hangs_while_all_are_stopped_is_killed_before_the_first_which_saves(
    tmp_path,
) -> None:
    script = tmp_path / "hasty.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from accel_rl.system import stopping
            stopping.STOP_SECONDS = 2.0
            from accel_rl.__main__ import main
            sys.exit(main(["train", *sys.argv[1:]]))
            """
        )
    )
    run_dir = tmp_path / "run"
    with launched(run_dir, *STORE, program=(str(script),), is_warm=False) as run:
        run.wait_for_rows()
        hanging = run.learner(1)
        hanging.suspend()
        run.process.send_signal(signal.SIGINT)
        errors = run.ends(128 + signal.SIGKILL)
    assert errors == f"error: learner 1 (pid {hanging.pid}) had to be killed\n"
    assert_saved_at_the_end(run_dir)


STRANGE = """
import os, pathlib, time
from accel_rl.envs.catch import Catch
class Strange(Catch):
    def reset(self, out):
        if os.environ["RANK"] == "1":
            pathlib.Path("{begun}").touch(); time.sleep(300)
        super().reset(out)
"""


def test_learner_that_is_stopped_before_it_has_begun_stops_the_others(tmp_path, monkeypatch):
    run_dir, begun = tmp_path / "run", tmp_path / "begun"
    (tmp_path / "strange.py").write_text(STRANGE.format(begun=begun))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    options = [each.replace("env=catch", "env=strange:Strange") for each in STORE]
    with launched(run_dir, *options) as run:
        run.wait_for_rows()
        wait_for(begun.exists)
        run.learner(1).terminate()
        assert run.ends(128 + signal.SIGTERM) == ""
    assert_saved_at_the_end(run_dir)
