"""How a sweep is shown while it goes, and what it ends in."""

import csv
import math
from pathlib import Path

import pytest
from rich.console import Console

from accel_rl.sweeps import display
from accel_rl.sweeps.display import Standing, SweepDisplay, read_standing, seconds_left
from accel_rl.sweeps.plan import plan_runs
from accel_rl.sweeps.queue import Job, make_jobs
from accel_rl.sweeps.report import write_report

NAN = float("nan")
COLUMNS = ["steps", "steps_per_second", "training_seconds", "episode_return_raw_mean"]


def write_table(path: Path, columns: list[str], *rows: list[float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def results(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def jobs_of(folder: Path, scores: dict[str, float], **axes: str) -> list[Job]:
    """Jobs that have finished with these scores; those without one have failed."""
    jobs = make_jobs(plan_runs(axes), folder, folder / "output")
    for job in jobs:
        if job.run.name not in scores:
            job.state, job.error = "failed", "exit code 1: no room"
            continue
        job.state = "finished"
        rows = [[50.0, 10.0, 5.0, 0.0], [100.0, 10.0, 9.0, scores[job.run.name]]]
        write_table(job.run_dir / "metrics.csv", COLUMNS, *rows)
    return jobs


@pytest.mark.slow
def test_report_of_games_is_human_normalised_and_its_form_that_of_the_paper(tmp_path) -> None:
    # breakout: (score - 1.7) / 28.8; pong: (score + 20.7) / 35.3
    scores = {
        "breakout-a2c-0": 1.7 + 28.8,  # 1.0
        "breakout-a2c-1": 1.7 + 2 * 28.8,  # 2.0
        "pong-a2c-0": -20.7 + 0.5 * 35.3,  # 0.5
        "pong-a2c-1": -20.7,  # 0.0
        "breakout-ppo-0": 1.7,
    }
    axes = {"algo": "a2c,ppo", "env": "breakout,pong", "seed": "0,1"}
    jobs = jobs_of(tmp_path, scores, **axes)
    (panel,) = write_report(tmp_path, jobs)
    assert panel.title == "human-normalised score, 2 games"
    # a2c: of 0, 0.5, 1, 2 the middle half is 0.5 and 1; the games' means are 1.5 and 0.25
    a2c = panel.estimates["a2c"]
    found = {name: each.value for name, each in a2c.items()}
    assert found == pytest.approx({"iqm": 0.75, "mean": 0.875, "median": 0.875})
    assert str(a2c["mean"]) == "0.88 range [0.50, 1.25]"  # two runs of each game
    assert math.isnan(panel.estimates["ppo"]["iqm"].low)
    text = (tmp_path / "results.md").read_text()
    assert "5 of 8 runs finished." in text
    assert "| a2c | 2 | 4 | 0.75 range [" in text and "| ppo | 1 | 1 | 0.00 | 0.00 | 0.00 |" in text
    assert "| breakout | 44.90 | 1.70 |" in text and "| pong | -11.88 | none |" in text
    assert "- pong-ppo-1: failed, exit code 1: no room" in text
    rows = results(tmp_path)
    assert len(rows) == 8
    assert rows[0] == {
        "run": "breakout-a2c-0",
        "configuration": "a2c",
        "env": "breakout",
        "seed": "0",
        "state": "finished",
        "score": "30.5",
        "human_normalized": "1",
        "score_of": "last 100 games",
        "steps": "100",
        "training_seconds": "9.0",
        "error": "",
    }


def test_report_of_other_environments_has_raw_scores_of_each(tmp_path) -> None:
    scores = {"catch-a2c-0": 0.5, "catch-a2c-1": 0.7, "pong-a2c-0": 3.0, "pong-a2c-1": 5.0}
    panels = write_report(tmp_path, jobs_of(tmp_path, scores, env="catch,pong", seed="0,1"))
    assert [panel.title for panel in panels] == ["score, catch", "score, pong"]
    assert panels[1].estimates["a2c"]["iqm"].value == 4.0


@pytest.mark.parametrize("text", [None, "", "steps\n100\n"])
def test_a_run_that_cannot_be_read_fails_and_hides_no_other(text: str | None, tmp_path) -> None:
    jobs = jobs_of(tmp_path, {"catch-a2c-0": 0.5, "catch-a2c-1": 0.7}, env="catch", seed="0,1")
    path = jobs[0].run_dir / "metrics.csv"
    path.unlink() if text is None else path.write_text(text)
    (panel,) = write_report(tmp_path, jobs)
    assert panel.estimates["a2c"]["mean"].value == 0.7
    assert jobs[0].state == "failed" and str(path) in jobs[0].error
    assert [row["state"] for row in results(tmp_path)] == ["failed", "finished"]


def test_a_run_whose_files_cannot_be_read_fails_alone_when_the_sweep_goes_on(tmp_path) -> None:
    runs = plan_runs({"env": "catch", "seed": "0,1", "evaluation_interval": "500"})
    run_dir = tmp_path / "runs" / runs[0].name
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "checkpoints" / "steps_000100000000.pt").touch()
    (run_dir / "evaluation.csv").write_bytes(b"steps\n\xff\xfe\n")
    jobs = make_jobs(runs, tmp_path, tmp_path / "output")
    assert [job.state for job in jobs] == ["failed", "waiting"]
    assert "evaluation.csv" in jobs[0].error


@pytest.mark.parametrize(
    ("evaluated", "expected"), [(7.0, ("7", "last evaluation")), (NAN, ("3", "last 100 games"))]
)
def test_score_is_that_of_the_last_evaluation_if_it_finished_a_game(
    evaluated: float, expected: tuple[str, str], tmp_path
) -> None:
    (job,) = jobs_of(tmp_path, {"pong-dqn-0": 3.0}, algo="dqn", env="pong")
    columns = ["steps", "episode_return_raw_mean"]
    write_table(job.run_dir / "evaluation.csv", columns, [50, 21], [100, evaluated])
    write_report(tmp_path, [job])
    (row,) = results(tmp_path)
    assert (row["score"], row["score_of"]) == expected


def test_means_of_what_the_environment_tells_stand_beside_the_scores(tmp_path) -> None:
    scores = {f"catch-a2c-{seed}": 1.0 for seed in range(3)}
    jobs = jobs_of(tmp_path, scores, env="catch", seed="0..2")
    columns = [*COLUMNS, "episode_info_is_success_mean"]
    for job, told in zip(jobs, (0.25, 1.0, NAN), strict=True):
        write_table(job.run_dir / "metrics.csv", columns, [100.0, 10.0, 9.0, 1.0, told])
    write_table(jobs[1].run_dir / "evaluation.csv", ["steps", *columns[3:]], [100.0, 1.0, 0.75])
    write_report(tmp_path, jobs)
    told = [row["episode_info_is_success_mean"] for row in results(tmp_path)]
    assert told == ["0.25", "0.75", ""]
    table = "is_success of each game\n\n| env | a2c |\n| --- | ---: |\n| catch | 0.50 |\n"
    assert f"\n## Mean {table}" in (tmp_path / "results.md").read_text()


def test_report_without_a_score_says_what_is_missing(tmp_path) -> None:
    assert write_report(tmp_path, jobs_of(tmp_path, {"catch-a2c-0": NAN}, env="catch")) == []
    text = (tmp_path / "results.md").read_text()
    assert "1 of 1 runs finished" in text and "Finished, but no game\n\n- catch-a2c-0\n" in text


def test_standing_is_the_last_whole_row(tmp_path) -> None:
    assert read_standing(tmp_path).steps == 0
    rows = [[float(i), 2.0, 3.0, 4.0] for i in range(3_000)]
    write_table(tmp_path / "metrics.csv", COLUMNS, *rows)
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("3000,2.")
    assert read_standing(tmp_path) == Standing(steps=2999.0, steps_per_second=2.0, score=4.0)
    (tmp_path / "metrics.csv").write_text("steps,")
    assert read_standing(tmp_path).steps == 0


def running(folder: Path) -> list[Job]:
    jobs = jobs_of(folder, {"catch-a2c-0": 0.5}, env="catch", seed="0,1,2", total_steps="1000")
    for job, state in zip(jobs, ("finished", "running", "waiting"), strict=True):
        job.state, job.error = state, ""
    write_table(jobs[1].run_dir / "metrics.csv", COLUMNS, [240.0, 10.0, 24.0, 0.25])
    return jobs


def test_time_left_is_that_of_all_runs_at_the_speed_of_those_that_run(tmp_path) -> None:
    jobs = running(tmp_path)  # of 1,040 steps each: 800 are left of one, and all of the other
    standing = read_standing(jobs[1].run_dir)
    assert seconds_left(jobs, {"catch-a2c-1": standing}) == pytest.approx((800 + 1040) / 10)
    assert math.isnan(seconds_left(jobs, {"catch-a2c-1": Standing()}))
    # One that has taken more steps than were planned takes none off the others.
    beyond = standing._replace(steps=5000.0)
    assert seconds_left(jobs, {"catch-a2c-1": beyond}) == pytest.approx(1040 / 10)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_tells_what_is_done_and_how_the_others_stand(
    is_terminal: bool, tmp_path, monkeypatch
) -> None:
    for name in ("LINE_SECONDS", "PANEL_SECONDS"):
        monkeypatch.setattr(display, name, 0.0)
    console = Console(width=100, force_terminal=is_terminal, color_system=None)
    jobs = running(tmp_path)
    with console.capture() as capture:
        shown = SweepDisplay(console, jobs)
        shown.tell(jobs[0])
        shown.look()
        shown.close()
        shown.close()
    text = capture.get()
    assert "1 of 3  catch-a2c-0: finished, score 0.50" in text
    if is_terminal:
        assert "1 of 3 runs finished, 1 running, 1 waiting, left 0:03:04" in text
        assert "catch-a2c-1 240 1040 10 0.25 0:01:20" in " ".join(text.split())
    else:
        assert "\x1b" not in text
        assert "catch-a2c-1: 23%, 240 steps, steps/s 10, score 0.25, sweep left 0:03:04" in text
