"""Environments that go wrong: one message with the user's file and line, and nothing is left."""

import os
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import faulty_envs
import numpy as np
import pytest
from faulty_envs import FAULTS, Faulty, IgnoresSeeds, line_of
from sampler_cases import await_ends, worker_pids, zeros
from tiers import PROCESSES, SLOW

from accel_rl.envs import make_env_factory
from accel_rl.samplers import ParallelSampler, SamplerConfig, SerialSampler
from accel_rl.system.topology import warn_once

FILE = re.escape(faulty_envs.__file__)
CONFIG = SamplerConfig(
    num_envs=2,
    horizon=4,
    num_groups=1,
    num_workers=1,
    decorrelation_steps=0,
)
QUICK = {"segfaults", "closes_slowly"}
SOME = {"hangs_in_c", "raises_interrupt", "returns_nan_reward", "closes_descriptors"}
SOME |= {"starts_session_and_raises", "starts_program", "raises_in_close"}


@pytest.fixture(autouse=True)
def pids(tmp_path, monkeypatch) -> Path:
    """A file for the programs that environments start, none of which may be left."""
    monkeypatch.setattr("accel_rl.samplers.base.RESET_SECONDS", 20)
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    return tmp_path / "pids"


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


def assert_told(kind, name: str, place: str) -> None:
    with pytest.raises(Exception, match=FAULTS[name].says) as caught:
        collect(kind, name)
    text = str(caught.value)
    assert re.search(place, text), text
    assert not worker_pids()


def place_of(name: str) -> str:
    line = line_of(name)
    return rf"\({FILE}, line {line}, in " if line else ""


def in_worker(*kinds: str) -> list:
    def marks(name: str) -> list:
        if name in QUICK:
            return [PROCESSES]
        return [PROCESSES, SLOW if name in SOME else pytest.mark.nightly]

    names = [name for name, each in FAULTS.items() if each.kind in kinds]
    return [pytest.param(name, marks=marks(name)) for name in names]


TOLD = [name for name, each in FAULTS.items() if each.kind == "told"]


@pytest.mark.parametrize("name", [each for each in TOLD if each != "starts_session_and_raises"])
def test_fault_in_a_serial_sampler_is_told_with_file_and_line(name: str, monkeypatch) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert_told(SerialSampler, name, r"environment 0 \(.*" + place_of(name))


@pytest.mark.parametrize("name", in_worker("told", "worker"))
def test_fault_in_a_worker_is_told_with_file_and_line(name: str, pids: Path) -> None:
    assert_told(ParallelSampler, name, "^worker 0 .*" + place_of(name))
    if name == "starts_session_and_raises":
        assert_no_program_is_left(pids, 1)


@pytest.mark.parametrize("name", in_worker("unplaced"))
def test_fault_that_leaves_no_place_names_the_worker(name: str) -> None:
    assert_told(ParallelSampler, name, r"^worker 0 \(pid \d+, ")


@pytest.mark.parametrize("name", in_worker("allowed"))
def test_what_is_no_fault_changes_nothing_and_its_programs_end(name: str, pids) -> None:
    collect(ParallelSampler, name)
    assert not worker_pids()
    if name == "starts_program":
        assert_no_program_is_left(pids, 2)
    if name == "closes_slowly":
        assert pids.read_text() == "closed" * 2


@pytest.mark.parametrize("name", in_worker("warned"))
def test_fault_in_close_of_a_worker_is_a_warning_with_file_and_line(name: str, caplog) -> None:
    """The rollouts are there already, and nothing is left."""
    collect(ParallelSampler, name)
    (said,) = caplog.messages
    assert re.search(f"^worker 0 .*{FAULTS[name].says}.*{place_of(name)}", said), said
    assert not worker_pids()


def test_fault_in_close_of_a_serial_sampler_is_a_warning_with_file_and_line(caplog) -> None:
    warn_once.cache_clear()
    collect(SerialSampler, "raises_in_close")
    (said,) = caplog.messages
    assert re.search(FAULTS["raises_in_close"].says + ".*" + place_of("raises_in_close"), said)


def test_observations_that_are_not_finite_are_passed_on_as_they_are() -> None:
    """A check of each would cost more than simple environments; learning tells that it diverged."""
    factory = make_env_factory(partial(Faulty, "returns_nan_observation"))
    with SerialSampler(factory, config=CONFIG) as sampler:
        observation = sampler.collect(zeros).observation
    assert np.isfinite(observation[:3]).all() and not np.isfinite(observation[3]).any()


def test_reset_that_takes_no_seed_is_told() -> None:
    factory = make_env_factory(partial(IgnoresSeeds, "nothing"))
    with pytest.raises(Exception, match=r"failed in .*IgnoresSeeds\.reset\(\).*'seed'"):
        with SerialSampler(factory, config=CONFIG) as sampler:
            sampler.collect(zeros)
