"""Environments that go wrong: one message with the user's file and line, and nothing is left."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import faulty_envs
import numpy as np
import pytest
from faulty_envs import (
    FAULTS,
    HARMLESS,
    ONLY_A_WORKER,
    TOLD,
    WARNED,
    WITHOUT_PLACE,
    Faulty,
    IgnoresSeeds,
    line_of,
)
from sampler_cases import await_ends, worker_pids, zeros
from tiers import PROCESSES, SLOW

from accel_rl.envs import make_env_factory
from accel_rl.samplers import ParallelSampler, SamplerConfig, SerialSampler

FILE = re.escape(faulty_envs.__file__)
CONFIG = SamplerConfig(
    num_envs=2,
    horizon=4,
    num_groups=1,
    num_workers=1,
    decorrelation_steps=0,
    step_timeout_seconds=100,
    reset_timeout_seconds=20,
)
QUICK = {"segfaults", "closes_slowly"}
SOME = {"hangs_in_c", "raises_interrupt", "returns_nan_reward", "closes_descriptors"}
SOME |= {"starts_session_and_raises", "starts_program", "raises_in_close"}


@pytest.fixture(autouse=True)
def pids(tmp_path, monkeypatch) -> Path:
    """A file for the programs that environments start, none of which may be left."""
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    yield tmp_path / "pids"
    Faulty.observation_space = IgnoresSeeds.observation_space


def assert_no_program_is_left(pids: Path, number: int) -> None:
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == number
    await_ends(started)


def collect(kind, name: str) -> None:
    factory = make_env_factory(partial(Faulty, name))
    hangs = name.startswith("hangs") or name == "stops_itself"
    config = replace(CONFIG, step_timeout_seconds=0.7) if hangs else CONFIG
    with kind(factory, config=config) as sampler:
        sampler.collect(zeros)


def assert_told(kind, name: str, told: str, place: str) -> None:
    with pytest.raises(Exception, match=told) as caught:
        collect(kind, name)
    text = str(caught.value)
    assert re.search(place, text), text
    assert not worker_pids()


def place_of(name: str) -> str:
    line = line_of(name)
    return rf"\({FILE}, line {line}, in " if line else ""


def in_worker(names) -> list:
    def marks(name: str) -> list:
        if name in QUICK:
            return [PROCESSES]
        return [PROCESSES, SLOW if name in SOME else pytest.mark.nightly]

    return [pytest.param(name, marks=marks(name)) for name in names]


def test_tables_have_each_fault() -> None:
    assert {*TOLD, *ONLY_A_WORKER, *WITHOUT_PLACE, *HARMLESS, *WARNED} == {*FAULTS}
    assert len(FAULTS) >= 35


@pytest.mark.parametrize("name", [each for each in TOLD if each != "starts_session_and_raises"])
def test_fault_in_a_serial_sampler_is_told_with_file_and_line(name: str, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", open(os.devnull))
    space = Faulty.observation_space
    try:
        assert_told(SerialSampler, name, TOLD[name], r"environment 0 \(.*" + place_of(name))
    finally:
        Faulty.observation_space = space
        sys.stdin.close()


@pytest.mark.parametrize("name", in_worker(TOLD | ONLY_A_WORKER))
def test_fault_in_a_worker_is_told_with_file_and_line(name: str, pids: Path) -> None:
    told = (TOLD | ONLY_A_WORKER)[name]
    assert_told(ParallelSampler, name, told, "^worker 0 .*" + place_of(name))
    if name == "starts_session_and_raises":
        assert_no_program_is_left(pids, 1)


@pytest.mark.parametrize("name", in_worker(WITHOUT_PLACE))
def test_fault_that_leaves_no_place_names_the_worker(name: str) -> None:
    assert_told(ParallelSampler, name, WITHOUT_PLACE[name], r"^worker 0 \(pid \d+, ")


@pytest.mark.parametrize("name", in_worker(HARMLESS))
def test_what_is_no_fault_changes_nothing_and_its_programs_end(name: str, pids, capfd) -> None:
    collect(ParallelSampler, name)
    assert not worker_pids()
    if name == "starts_program":
        assert_no_program_is_left(pids, 2)
    if name == "closes_slowly":
        assert pids.read_text() == "closed" * 2


@pytest.mark.parametrize("name", in_worker(WARNED))
def test_fault_in_close_of_a_worker_is_a_warning_with_file_and_line(name: str, caplog) -> None:
    """The rollouts are there already, and nothing is left."""
    collect(ParallelSampler, name)
    (said,) = caplog.messages
    assert re.search(f"^worker 0 .*{WARNED[name]}.*{place_of(name)}", said), said
    assert not worker_pids()


def test_fault_in_close_of_a_serial_sampler_is_told_with_file_and_line() -> None:
    name = "raises_in_close"
    assert_told(SerialSampler, name, WARNED[name], place_of(name))


@pytest.mark.parametrize("name", ["returns_nan_observation", "returns_infinite_observation"])
def test_observations_that_are_not_finite_are_passed_on_as_they_are(name: str) -> None:
    """A check of each would cost more than simple environments; learning tells that it diverged."""
    with SerialSampler(make_env_factory(partial(Faulty, name)), config=CONFIG) as sampler:
        observation = sampler.collect(zeros).observation
    assert np.isfinite(observation[:3]).all() and not np.isfinite(observation[3]).any()


def test_seeds_that_are_ignored_change_nothing_else() -> None:
    """Nobody can tell such an environment from a deterministic one."""
    factory = make_env_factory(partial(Faulty, "nothing"))
    rollouts = []
    for seed in (1, 2):
        with SerialSampler(factory, config=CONFIG, seed=seed) as sampler:
            rollouts.append(sampler.collect(zeros).observation.copy())
    assert np.array_equal(*rollouts)


def test_reset_that_takes_no_seed_is_told() -> None:
    factory = make_env_factory(partial(IgnoresSeeds, "nothing"))
    with pytest.raises(Exception, match=r"failed in .*IgnoresSeeds\.reset\(\).*'seed'"):
        with SerialSampler(factory, config=CONFIG) as sampler:
            sampler.collect(zeros)


@pytest.mark.nightly
@PROCESSES
def test_crash_without_workers_ends_the_program_and_leaves_no_other() -> None:
    """Nothing can be said within the process that crashes."""
    code = (
        "from test_faulty_environments import *; import os\ncollect(SerialSampler, 'segfaults')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert ended.returncode == -11
