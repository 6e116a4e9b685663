"""Evaluations while a run goes on: the last one of all, and where they play."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from accel_rl.__main__ import main
from accel_rl.training import evaluation
from accel_rl.training.checkpoint import list_checkpoints
from accel_rl.training.command_line import parse_arguments
from accel_rl.training.evaluation import lacks_last_evaluation, make_evaluation_sampler
from accel_rl.training.sweep.plan import is_finished, plan_runs

EVALUATED = {"evaluation_interval": "500", "evaluation_steps": "50", "evaluation_envs": "2"}
SMALL = {"env": "catch", "serial": "true", "total_steps": "1000", "checkpoint_interval": "1000"}


@pytest.mark.parametrize("kept_rows", [0, 1])
def test_last_evaluation_that_was_cut_off_is_made_on_resume(kept_rows: int, tmp_path) -> None:
    run_dir, options = tmp_path / "run", SMALL | EVALUATED
    (planned,) = plan_runs(options)
    assert main([*(f"{key}={value}" for key, value in options.items()), f"run_dir={run_dir}"]) == 0
    assert is_finished(planned, run_dir)
    table = run_dir / "evaluation.csv"
    lines = table.read_text().splitlines(keepends=True)
    assert len(lines) == 3
    assert "evaluation after 1,040 steps: score " in (run_dir / "train.log").read_text()
    table.write_text("".join(lines[: 1 + kept_rows]) if kept_rows else "")
    assert not is_finished(planned, run_dir)
    (checkpoint,) = list_checkpoints(run_dir)
    state = torch.load(checkpoint)
    state["evaluator"] = {"steps": 500 * kept_rows, "number": kept_rows}
    torch.save(state, checkpoint)
    assert main([f"resume={run_dir}"]) == 0
    assert is_finished(planned, run_dir)
    assert table.read_text().splitlines(keepends=True)[-1] == lines[2] or not kept_rows
    assert main([f"resume={run_dir}"]) == 1  # all is done


def test_run_too_short_for_an_evaluation_lacks_none(tmp_path: Path) -> None:
    for interval, lacks in ((0, False), (2000, False), (1000, True)):
        config = parse_arguments(
            ["env=catch", "total_steps=1500", f"evaluation_interval={interval}"]
        )
        assert lacks_last_evaluation(tmp_path, config) == lacks


def test_learner_that_has_a_part_of_the_given_cpus_evaluates_on_it(monkeypatch) -> None:
    own, *others = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(evaluation, "available_cpus", lambda: {own})
    given = ",".join(map(str, [own, *others, 511]))
    config = parse_arguments(["env=catch", f"cpus={given}"])
    seeds = np.random.SeedSequence(0)
    with make_evaluation_sampler(config, 2, seeds, torch.device("cpu"), serial=False) as sampler:
        assert {cpu for cpus in sampler.plan.worker_cpus for cpu in cpus} == {own}
