"""Several learners in one run: how they start, go on, fail, and are ended."""

import os
import signal
import textwrap
from contextlib import suppress

import numpy as np
import pytest
from launched_runs import (
    ENDLESS,
    SMALL,
    TORCHRUN,
    goes_on_to_the_bit,
    last_checkpoint,
    launched,
    train,
)
from run_files import table
from saved_runs import quiet

from accel_rl.cli.parse import parse_arguments
from accel_rl.parallel import Ranks, Team
from accel_rl.runs.checkpoint import list_checkpoints, part_path
from accel_rl.training.devices import check_learners
from accel_rl.training.resume import check_is_shared
from accel_rl.training.train import train as train_here

REPLAY = "algo=dqn batch_size=16 learning_starts=400 buffer_size=4000 save_replay=true"
EVALUATED = "evaluation_interval=600 evaluation_steps=2"

IN_STEP = {
    "ppo-lstm": "algo=ppo memory=lstm horizon=30 minibatch_size=60 epochs=2 log_norms=true",
    "own": "algo=test_own_algorithm:ratio decorrelation_steps=10",
    "pqn": "algo=pqn horizon=20 minibatch_size=20 num_workers=0",
    "prioritized-overlapped": f"{REPLAY} prioritized=true overlap=true num_workers=0",
    "two-each": f"{REPLAY} log_norms=true {EVALUATED} num_workers=0",
}


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["own", *(pytest.param(each, marks=pytest.mark.nightly) for each in IN_STEP if each != "own")],
)
def test_two_learners_in_step_go_on_to_the_bit_as_if_never_stopped(name: str, tmp_path) -> None:
    options = IN_STEP[name].split()
    goes_on_to_the_bit(tmp_path, *options, *["num_workers=1"] * ("num_workers=0" not in options))


@pytest.mark.processes
@pytest.mark.slow
def test_killed_learner_ends_the_run_which_one_learner_can_go_on_with(tmp_path) -> None:
    with launched(tmp_path, *SMALL, ENDLESS) as run:
        run.wait_for_rows(3)
        learner = run.learner(1)
        cores = {tuple(run.learner(rank).cpu_affinity()) for rank in (0, 1)}
        assert len(cores) == min(2, len(os.sched_getaffinity(0)))  # serial ones divide them, too
        learner.kill()
        errors = run.ends(1)
    assert errors == (
        f"error: learner 1 (pid {learner.pid}) was killed by SIGKILL; the others are stopped\n"
    )
    saved = last_checkpoint(tmp_path)
    steps = saved["counts"]["steps"]
    resumed = [f"resume={tmp_path}", "learners=1", f"total_steps={steps + 40}"]
    train_here(parse_arguments(resumed), quiet())
    assert "with 1 learner in place of 2; all" in (tmp_path / "train.log").read_text()
    assert last_checkpoint(tmp_path)["counts"]["steps"] == steps + 40


@pytest.mark.processes
@pytest.mark.slow
def test_killed_launcher_takes_learners_and_workers_along_saved(tmp_path) -> None:
    options = [each for each in SMALL if each != "num_workers=0"]
    with launched(tmp_path, *options, "num_workers=1", ENDLESS) as run:
        run.wait_for_rows()
        run.process.kill()
        assert run.ends(-signal.SIGKILL) == ""
    assert list_checkpoints(tmp_path)


@pytest.mark.nightly
@pytest.mark.processes
def test_stopped_learner_is_named_and_second_signal_kills_it(tmp_path) -> None:
    env = os.environ | {"OMP_NUM_THREADS": "1", "ACCEL_RL_TIMEOUT_SECONDS": "3"}
    with launched(tmp_path, *SMALL, ENDLESS, env=env) as run:
        run.wait_for_rows()
        run.learner(1).suspend()
        assert run.process.stderr is not None
        assert run.process.stderr.readline().endswith("learner 1 does not answer\n")
        run.learner(0).wait(20)
        assert "; learner 1 does not answer\n" in (tmp_path / "train.log").read_text()
        run.process.send_signal(signal.SIGTERM)
        assert "learner 1 (pid " in run.ends(1)


@pytest.mark.nightly
@pytest.mark.processes
def test_learner_that_cannot_save_is_named_and_the_run_can_go_on(tmp_path) -> None:
    folder = tmp_path / "checkpoints"
    with launched(tmp_path, *SMALL, ENDLESS) as run:
        run.wait_for_rows(3)
        for steps in range(1600, 80000, 800):  # in the way of each part
            with suppress(FileExistsError):
                part_path(tmp_path, steps, 1).mkdir()
        errors = run.ends(1)
    assert errors.startswith(f"error: learner 1: cannot write {folder}/part_")
    assert errors.count("error:") == 1
    for path in folder.glob("part_*"):
        path.rmdir() if path.is_dir() else path.unlink()
    steps = last_checkpoint(tmp_path)["counts"]["steps"]
    train(tmp_path, f"resume={tmp_path}", f"total_steps={steps + 40}")
    log = (tmp_path / "train.log").read_text()
    assert "nothing was saved of learner 1, so all environments start new episodes" in log


@pytest.mark.nightly
@pytest.mark.processes
def test_store_stopped_by_a_signal_goes_on(tmp_path) -> None:
    with launched(tmp_path, *SMALL, "sync=store", ENDLESS) as run:
        run.wait_for_rows()
        for _ in range(2):  # by the shell and by the kernel, when the terminal is closed
            run.process.send_signal(signal.SIGHUP)
        assert run.ends(128 + signal.SIGHUP) == ""
    before = last_checkpoint(tmp_path)
    assert before["parts"].keys() == {1}
    steps = before["counts"]["steps"] + 400
    train(tmp_path, f"resume={tmp_path}", f"total_steps={steps}")
    after = last_checkpoint(tmp_path)
    assert steps <= after["counts"]["steps"] <= steps + 40
    assert after["counts"]["updates"] == after["counts"]["steps"] / 20


@pytest.mark.nightly
@pytest.mark.processes
def test_parameters_that_drift_apart_under_torchrun_are_found(tmp_path) -> None:
    script = tmp_path / "drift.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from accel_rl.training.records import Records
            from accel_rl.__main__ import main
            write_row = Records.write_row
            def change(self, **options):
                if not self._team.ranks.is_first:
                    self._sync.parameters.parameter[0] += self.steps == 800
                write_row(self, **options)
            Records.write_row = change
            sys.exit(main(["train", *sys.argv[1:]]))
            """
        )
    )
    run_dir = tmp_path / "run"
    with launched(run_dir, *SMALL, ENDLESS, program=(*TORCHRUN, str(script))) as run:
        errors = run.ends(1)
    assert "the parameters of learner 1 are no longer those of learner 0, after" in errors


@pytest.mark.parametrize(
    ("options", "ranks", "message"),
    [
        (["learners=3"], Ranks(0, 2, 0, 2), "learners=3, but the launcher has started 2; leave"),
        (["sync=store"], Ranks(0, 2, 0, 1), "sync=store is for learners of one machine"),
    ],
    ids=["number", "machines"],
)
def test_what_contradicts_torchrun_is_refused(options, ranks: Ranks, message: str) -> None:
    config = parse_arguments(["env=catch", "num_envs=12", *options])
    with pytest.raises(ValueError, match=message):
        check_learners(config, ranks)


@pytest.mark.parametrize(("algo", "learners"), [("a2c", 8), ("dqn", 5)])
def test_advice_about_what_cannot_be_divided_works(algo: str, learners: int) -> None:
    """Each message's own, one after another, until the run can be had."""
    given = {"algo": algo, "env": "catch", "learners": str(learners), "num_envs": "4"}
    for _ in range(3):
        config = parse_arguments([f"{key}={value}" for key, value in given.items()])
        try:
            return check_learners(config, Ranks())
        except ValueError as error:
            advice = str(error).partition("; use ")[2].partition(", or another")[0]
            assert advice, error
            given |= dict(each.split("=") for each in advice.split())
    raise AssertionError(given)


def test_run_directory_that_one_machine_does_not_see_is_refused(tmp_path) -> None:
    second = Team(Ranks(1, 2, 0, 1))
    check_is_shared(tmp_path, second)
    check_is_shared(tmp_path / "absent", Team(Ranks(0, 2, 0, 1)))
    with pytest.raises(ValueError, match=r"there is no .*/absent on .* that all machines see"):
        check_is_shared(tmp_path / "absent", second)


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.parametrize(
    ("learners", "options"),
    [
        (3, "algo=a3c num_envs=8 horizon=10 lr=2e-3 total_steps=60000"),
        (2, "algo=appo num_envs=16 horizon=20 minibatch_size=80 total_steps=120000"),
        (
            2,
            "algo=async_dqn num_envs=8 horizon=4 batch_size=32 lr=1e-3 optimizer=adam "
            "learning_starts=1000 buffer_size=20000 training_intensity=4 total_steps=60000 "
            "target_update_interval=1000 epsilon_steps=10000 epsilon_final=0.01",
        ),
    ],
)
def test_learners_with_a_store_learn_catch(learners: int, options: str, tmp_path) -> None:
    """0.9 is 95 % of the balls caught."""
    common = ("env=catch", "num_workers=0", "log_interval=2000", f"learners={learners}")
    told = train(tmp_path, *common, *options.split()).splitlines()
    assert ["ranks share" in x for x in told] == [True] * (learners > len(os.sched_getaffinity(0)))
    returns = [float(row["episode_return_raw_mean"]) for row in table(tmp_path / "metrics.csv")]
    assert returns[0] < 0 and np.mean(returns[-5:]) >= 0.9
