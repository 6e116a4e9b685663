"""Chaos and soak: do they find what leaks, hangs or grows, and does a minute of them hold?"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import chaos
import mutations
import pytest
import soak
import trial
import ways
from benchmark_scripts import run
from trial import Result, Trial

LEAKY = """
import signal, subprocess, sys, tempfile, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))
{leak}
open(sys.argv[1] + "/metrics.csv", "w").write("a\\n" * 5)
while True:
    time.sleep(0.01)
"""


def failures_of(tmp_path: Path, monkeypatch, *, leak: str = "", code: int = 143) -> list[str]:
    """What a trial finds in a program that SIGTERM ends with ``code`` after ``leak``."""
    monkeypatch.setattr(trial, "LEFT_SECONDS", 0.3)
    monkeypatch.setattr(trial, "HANG_SECONDS", 3.0)
    (tmp_path / "run").mkdir()
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(LEAKY.format(leak=leak, code=code)))
    way = ways.Way(program=(str(script), str(tmp_path / "run")), targets=("root",))
    result = Result("serial", "root", "TERM", "steps", seed=0)
    Trial(way, result, tmp_path).run()
    return result.failures


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("leak", "code", "found"),
    [
        ("", 143, None),
        ("", 1, r"exit code 1, not in \[-15, 143\]"),
        ('subprocess.Popen(["sleep", "30"], start_new_session=True)', 143, "left: .*sleep 30"),
        ("tempfile.mkdtemp()", 143, "temporary files left"),
        ('open("/dev/shm/accel_rl_chaos_test", "w")', 143, "left: /dev/shm/accel_rl_chaos_test"),
        ('open(sys.argv[1] + "/.a.part", "w")', 143, "unfinished files left"),
        ("signal.signal(signal.SIGTERM, lambda *_: None)", 143, "hangs"),
    ],
    ids=["nothing", "code", "process", "file", "memory", "unfinished", "hang"],
)
def test_trial_finds_what_is_left(
    leak: str, code: int, found: str | None, tmp_path, monkeypatch
) -> None:
    try:
        failures = failures_of(tmp_path, monkeypatch, leak=leak, code=code)
    finally:
        Path("/dev/shm/accel_rl_chaos_test").unlink(missing_ok=True)
    assert len(failures) == (found is not None)
    assert all(re.match(found or "", failure) for failure in failures)


def test_mutations_change_code_that_is_there() -> None:
    for each in mutations.parse(mutations.MUTATIONS):
        code = (mutations.REPOSITORY / "accel_rl" / each.file).read_text()
        assert code.count(each.old) == 1, each.name


def test_seeds_deal_all_cases_and_each_case_has_an_expectation(tmp_path) -> None:
    every = ways.make_ways(tmp_path)
    cases = list(ways.make_cases(every))
    assert {name for name, *_ in cases} == every.keys()
    drawn = [chaos.draw_case(cases, seed) for seed in range(300)]
    assert drawn == [chaos.draw_case(cases, seed) for seed in range(300)]
    assert set(drawn) == set(cases)
    for name, target, signal in cases:
        for phase in every[name].phases:
            wanted = ways.expected(name, target, signal, phase, 1)
            assert wanted.codes or wanted.outcome != "ends"


def seen(memory: list[float], descriptors: list[int], steps: list[int]) -> soak.Seen:
    """A run and a worker, looked at every 10 seconds."""
    looks = [
        soak.Look(10.0 * n, kind, m, d, 5)
        for n, (m, d) in enumerate(zip(memory, descriptors, strict=True))
        for kind in soak.KINDS
    ]
    paces = [soak.Pace(10.0 * n, s, 20.0 * n) for n, s in enumerate(steps)]
    return soak.Seen(looks, paces, warm_up=70.0)


FLAT, OPEN, STEPS = [100.0] * 40, [9] * 40, [50_000 * n for n in range(40)]


def test_soak_that_is_flat_after_its_warm_up_holds() -> None:
    warm_up = [50.0, 80.0, 90.0, 50.0, 50.0, 50.0, 50.0, *FLAT[7:]]
    assert soak.judge(seen(warm_up, OPEN, STEPS), soak.Options()) == []


@pytest.mark.parametrize(
    ("what", "found"),
    [
        (seen([100.0 + n for n in range(40)], OPEN, STEPS), "memory of run"),
        (seen([100.0 + n / 8 for n in range(40)], OPEN, STEPS), r"memory of run.*grew in the last"),
        (seen(FLAT, [9 + n // 10 for n in range(40)], STEPS), "descriptors of run"),
        (seen(FLAT, OPEN, [50_000 * n - 400 * n * n for n in range(40)]), "speed"),
        (seen(FLAT, OPEN, [0] * 40), "too few steps"),
        (soak.Seen([], [], 0.0), "too few looks"),
    ],
    ids=["memory", "growth", "descriptors", "speed", "steps", "looks"],
)
def test_soak_finds_what_grows(what: soak.Seen, found: str) -> None:
    assert re.match(found, soak.judge(what, soak.Options())[0])


@pytest.mark.nightly
@pytest.mark.processes
def test_chaos_for_a_minute_holds(tmp_path) -> None:
    quick = "ways=[serial,parallel,restart,overlap,evaluation,vector,ga3c]"
    result = run(
        "tests/stress/chaos.py",
        "minutes=0.8",
        quick,
        f"out={tmp_path / 'chaos'}",
        f"folder={tmp_path}",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "held: " in result.stdout and (tmp_path / "chaos.jsonl").exists()


@pytest.mark.nightly
@pytest.mark.processes
def test_soak_for_a_minute_is_flat(tmp_path) -> None:
    """Before the first curve, which takes memory once. The machine may be busy."""
    limits = ("memory_percent=10", "growth_percent=10", "speed_percent=60")
    options = ("minutes=0.8", "kill_seconds=8", "look_seconds=1", f"out={tmp_path / 'soak'}")
    result = run("tests/stress/soak.py", *options, *limits)
    assert result.returncode == 0, result.stdout + result.stderr
