"""The first figures of a GPU, at tiny sizes."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu_day import first


def test_each_way_is_measured_and_each_failure_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = "random acting graphs eager overlap tf32"
    cases = {"small": ("algo=a2c", ways), "wrong": ("algo=a2c num_envs=0", "graphs")}
    monkeypatch.setattr(first, "CASES", cases)
    monkeypatch.setattr(first, "tune_malloc", lambda: None)
    out = tmp_path / "first.jsonl"
    first.main([f"out={out}", "seconds=0.05", "game=catch", "cases=[line,small,wrong]"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["case"] for row in rows] == ["line", "line", *["small"] * 6, "wrong"]
    assert [row.get("way") for row in rows[2:8]] == ways.split()
    assert all(row["steps_per_second"] > 0 for row in rows[:8])
    assert "num_envs" in rows[8]["error"]
    by_graphs, eager = rows[4], rows[5]
    assert "graphs, in" in by_graphs["graphs"] and "graphs" not in eager
    assert by_graphs["gpu_gigabytes"] > 0


def test_after_an_error_of_cuda_the_cases_that_follow_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(first, "tune_malloc", lambda: None)
    monkeypatch.setattr(first, "make_sampler", fail)
    with pytest.raises(first.Lost) as lost:
        first.main([f"out={tmp_path / 'first.jsonl'}", "cases=[a2c_120,ppo_8,pqn_120]"])
    assert lost.value.args[0] == ("ppo_8", "pqn_120")
