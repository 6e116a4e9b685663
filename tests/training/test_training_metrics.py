"""Metrics: means on the device, scores, rows of CSV and TensorBoard, the learning curve."""

import csv
import math
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from saved_runs import SMALL, quiet
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from accel_rl.cli.parse import parse_arguments
from accel_rl.runs import tables
from accel_rl.runs.tables import CsvTable, EventsWriter, MetricsWriter, read_rows
from accel_rl.samplers import Episode
from accel_rl.sweeps.display import Standing, read_standing
from accel_rl.training.metrics import LearnerMetrics, Scores
from accel_rl.training.train import train


def episode(raw: float, clipped: float = 0.0, length: int = 1) -> Episode:
    return Episode(0, raw, clipped, length, False)


@pytest.mark.parametrize(
    "value",
    [3, 3.0, np.float32(3), np.float64(3), np.array(3), torch.tensor(3), torch.tensor([3.0])],
    ids=repr,
)
def test_learner_metrics_may_be_any_numbers_and_keep_no_graph(value: object) -> None:
    metrics = LearnerMetrics()
    for _ in range(2):
        loss = torch.ones((), requires_grad=True) * 2
        metrics.add({"loss": loss, "own": value, "is_clipped": torch.tensor(True)})
    assert not any(total.requires_grad for total in metrics._totals.values())
    assert metrics.take() == {"loss": 2.0, "own": 3.0, "is_clipped": 1.0}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (torch.zeros(2, 3), r"a tensor of shape \[2, 3\]"),
        (torch.tensor(1j), r"a tensor of shape \[\]"),
        (np.zeros(2), r"array\(\[0., 0.\]\)"),
        (None, "None"),
        ("high", "'high'"),
    ],
    ids=["tensor", "complex", "array", "none", "text"],
)
def test_learner_metrics_that_are_no_number_are_named(value: object, found: str) -> None:
    with pytest.raises(ValueError, match=f"the metric own is {found}; it must be one real number"):
        LearnerMetrics().add({"loss": torch.zeros(()), "own": value})


def test_learner_metrics_that_not_every_update_has_are_means_over_those_that_have() -> None:
    metrics, one = LearnerMetrics(), torch.ones(())
    metrics.add({"loss": one, "cosine": 5 * one})
    metrics.add({"loss": 2 * one})
    metrics.add({})
    metrics.add({"loss": 6 * one})
    metrics.add({"second": 8 * one})
    resumed = LearnerMetrics()
    resumed.set_state(metrics.get_state())
    for each in (metrics, resumed):
        each.add({"loss": 7 * one, "cosine": 7 * one})
        assert each.take() == {"loss": 4.0, "cosine": 6.0, "second": 8.0}
        assert each.take() == {}


def test_learner_metrics_are_read_from_the_device_by_take_alone(monkeypatch) -> None:
    reads = []
    for name in ("tolist", "item", "cpu", "numpy", "__float__"):
        real = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda *a, n=name, r=real: (reads.append(n), r(*a))[1]
        )
    metrics = LearnerMetrics()
    for _ in range(5):
        metrics.add({"loss": torch.ones(()), "norm": torch.ones(())})
        metrics.add({"cosine": torch.ones(())})  # that not every update has
    assert reads == []
    metrics.not_finite()
    assert reads == ["tolist"]
    metrics.take()
    assert reads == ["tolist"] * 2


def test_metrics_that_are_not_finite_are_named_once() -> None:
    metrics = LearnerMetrics()
    metrics.add({"loss": torch.tensor(math.nan), "norm": torch.tensor(1.0)})
    metrics.add({"loss": torch.tensor(math.inf), "cosine": torch.tensor(math.nan)})
    assert metrics.not_finite() == ["loss", "cosine"]


def test_scores_cover_the_last_100_episodes() -> None:
    scores = Scores()
    scores.add([episode(1_000.0)] * 50)
    scores.add([episode(float(n), clipped=n / 100, length=2 * n) for n in range(100)])
    found = scores.summary()
    assert scores.num_episodes == 150
    assert found == pytest.approx(
        {
            "episode_return_raw_mean": 49.5,  # of 0 .. 99
            "episode_return_raw_std": math.sqrt((100**2 - 1) / 12),
            "episode_return_raw_min": 0.0,
            "episode_return_raw_p10": 9.9,
            "episode_return_raw_median": 49.5,
            "episode_return_raw_p90": 89.1,
            "episode_return_raw_max": 99.0,
            "episode_return_clipped_mean": 0.495,
            "episode_length_steps_mean": 99.0,
            "episodes_in_window": 100.0,
        }
    )


def test_episode_that_a_lost_worker_cut_off_is_no_score() -> None:
    scores = Scores()
    scores.add([episode(10.0), episode(0.0)._replace(is_lost=True)])
    assert scores.num_episodes == 1
    assert scores.summary()["episode_return_raw_mean"] == 10.0


def test_scores_before_the_first_episode_are_nan() -> None:
    found = Scores().summary()
    assert found.pop("episodes_in_window") == 0.0
    assert all(math.isnan(value) for value in found.values())


def test_rows_are_in_the_file_as_soon_as_they_are_written(tmp_path) -> None:
    writer = MetricsWriter(tmp_path)
    writer.write({"steps": 100, "episode_return_raw_mean": math.nan, "policy_loss": 0.25})
    assert (tmp_path / "metrics.csv").read_text() == (
        "steps,episode_return_raw_mean,policy_loss\n100,nan,0.25\n"
    )
    writer.write({"steps": 25_000_000, "episode_return_raw_mean": 1.5, "policy_loss": -1e-7})
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[1] == {
        "steps": "25000000",
        "episode_return_raw_mean": "1.5",
        "policy_loss": "-1e-07",
    }
    writer.close()
    writer.close()


def test_events_hold_the_same_numbers_by_steps(tmp_path) -> None:
    writer = MetricsWriter(tmp_path)
    writer.write({"steps": 100, "frames": 400, "episode_return_raw_mean": math.nan, "loss": 0.5})
    writer.write({"steps": 200, "frames": 800, "episode_return_raw_mean": 3.0, "loss": 0.25})
    writer.write_evaluation({"steps": 200, "episode_return_raw_mean": 7.0})
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    found = {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }
    assert found == {
        "run/frames": [(100, 400.0), (200, 800.0)],
        "learner/loss": [(100, 0.5), (200, 0.25)],
        "episode/episode_return_raw_mean": [(200, 3.0)],
        "evaluation/episode_return_raw_mean": [(200, 7.0)],
    }
    assert (tmp_path / "evaluation.csv").read_text() == "steps,episode_return_raw_mean\n200,7\n"


def test_row_that_a_full_disk_cut_off_is_left_out(tmp_path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("steps,a,b\n100,1,2\n200,1")
    table = CsvTable(path, 150)
    assert list(table.earlier_rows()) == [{"steps": 100, "a": 1, "b": 2}]
    table.write({"steps": 200, "a": 3, "b": 4})
    assert path.read_text() == "steps,a,b\n100,1,2\n200,3,4\n"
    path.write_text("steps,a")  # a header that was cut off is none
    CsvTable(path, 0).write({"steps": 1})
    assert path.read_text() == "steps\n1\n"


def test_parts_of_a_run_that_begin_in_one_second_have_files_of_events_each(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(tables.time, "time", lambda: 1_800_000_000.5)
    for i in range(12):
        writer = EventsWriter(tmp_path, i)
        writer.write({"loss": float(i)}, i + 1)
        writer.close()
    assert len(list(tmp_path.iterdir())) == 12
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
    assert [(event.step, event.value) for event in events] == [(i + 1, i) for i in range(12)]


def test_table_keeps_no_rows_in_memory(tmp_path) -> None:
    sizes = []
    for steps in range(2):
        table = CsvTable(tmp_path / "metrics.csv", 1_000)
        for step in range(200):
            table.write({"steps": steps * 200 + step, "a": 1})
            sizes.append(len(pickle.dumps(vars(table))))
    assert max(sizes) - min(sizes) < 50
    assert len(list(table.earlier_rows())) == 400


@pytest.mark.slow
def test_run_draws_its_curve_through_few_rows_of_all_its_parts(tmp_path, monkeypatch) -> None:
    drawn: list[list[float]] = []

    def draw(path: Path, rows: list[dict[str, float]], *_: object) -> None:
        drawn.append([row["steps"] for row in rows])

    monkeypatch.setattr("accel_rl.runs.figures.draw_learning_curve", draw)
    monkeypatch.setattr(tables, "MOST_CURVE_ROWS", 4)
    options = [*SMALL[:-1], "env=catch", "log_interval=10", f"run_dir={tmp_path / 'run'}"]
    train(parse_arguments([*options, "total_steps=60"]), quiet())
    train(parse_arguments([f"resume={tmp_path / 'run'}", "total_steps=120"]), quiet())
    assert drawn == [[10, 30, 50, 60], [10, 50, 90, 120]]


@pytest.mark.parametrize("how", [Path.unlink, lambda path: path.write_text("")])
def test_table_that_is_deleted_or_emptied_goes_on_with_its_header(how, tmp_path, caplog) -> None:
    path = tmp_path / "metrics.csv"
    table = CsvTable(path, 0)
    table.write({"steps": 1, "a": 2})
    how(path)
    table.write({"steps": 2, "a": 3})
    table.write({"steps": 3, "a": 4})
    assert path.read_text() == "steps,a\n2,3\n3,4\n"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert [row["a"] for row in CsvTable(path, 2).earlier_rows()] == [3]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_text(f"steps,a\n1,{'1' * 140_000}\n"), "field larger than"),
        (lambda path: path.write_text("1,2\n3,4\n"), "no column steps"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "not a regular file"),
        (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    ],
    ids=["large cell", "no header", "fifo", "folder"],
)
def test_table_that_cannot_be_read_is_one_message_for_each_reader(
    spoil, message: str, tmp_path
) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("steps,a\n1,2\n")
    spoil(path)
    with pytest.raises(ValueError, match=rf"metrics\.csv cannot be read: .*{message}"):
        read_rows(path, "steps")
    with pytest.raises(ValueError, match=r"metrics\.csv (is no table of|cannot be read).*move it"):
        CsvTable(path, 0)
    assert read_standing(tmp_path) == Standing()
