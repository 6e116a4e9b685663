"""How a run with a store ends where one learner is stopped, lost or hangs: saved, and in time."""

import signal
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from launched_runs import ENDLESS, SMALL, TORCHRUN, last_checkpoint, launched, wait_for
from run_files import table

STORE = (*SMALL, "sync=store", ENDLESS)

pytestmark = [pytest.mark.nightly, pytest.mark.processes]


@pytest.fixture
def at_reset(tmp_path, monkeypatch) -> Callable[[str], str]:
    """An environment with which the second learner does something else when it begins."""

    def make(what: str) -> str:
        lines = (
            "import os, pathlib, time",
            "from accel_rl.envs.catch import Catch",
            "class Strange(Catch):",
            "    def reset(self, out):",
            f"        if os.environ['RANK'] == '1': {what}",
            "        super().reset(out)",
        )
        (tmp_path / "strange.py").write_text("\n".join(lines))
        return "env=strange:Strange"

    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return make


def with_env(env: str, options: Sequence[str]) -> list[str]:
    return [env if each.startswith("env=") else each for each in options]


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
            sys.exit(main())
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


def test_learner_that_torchrun_lost_keeps_the_first_from_saving_no_longer(tmp_path) -> None:
    """Which torchrun kills 30 seconds after it has asked it to stop."""
    with launched(tmp_path, *STORE, program=(*TORCHRUN, "launch/train.py")) as run:
        run.wait_for_rows()
        run.learner(1).kill()
        run.ends(1)
    assert_saved_at_the_end(tmp_path)
    assert "stopped by SIGTERM" in (tmp_path / "train.log").read_text()


def test_learner_that_is_stopped_before_it_has_begun_stops_the_others(at_reset, tmp_path) -> None:
    run_dir, begun = tmp_path / "run", tmp_path / "begun"
    env = at_reset(f"pathlib.Path('{begun}').touch(); time.sleep(300)")
    with launched(run_dir, *with_env(env, STORE)) as run:
        run.wait_for_rows()
        wait_for(begun.exists)
        run.learner(1).terminate()
        assert run.ends(128 + signal.SIGTERM) == ""
    assert_saved_at_the_end(run_dir)
