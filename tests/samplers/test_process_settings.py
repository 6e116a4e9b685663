"""Settings of the process that environments in it change: taken back, and told."""

import gc
import io
import locale
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sampler_cases import zeros
from saved_runs import quiet, trained, undrawn
from tiers import SLOW
from toy_envs import ToyEnv

from accel_rl.cli.parse import parse_arguments
from accel_rl.envs import make
from accel_rl.samplers import SerialSampler
from accel_rl.system import topology
from accel_rl.system.process_settings import all_settings, taking_back
from accel_rl.tools.evaluate import EvaluateOptions, evaluate_run
from accel_rl.training.train import train

CHANGES: dict[str, Callable[[], object]] = {
    "torch's gradient mode": lambda: torch.set_grad_enabled(False),
    "torch's threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch's dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's device": lambda: torch.set_default_device("meta"),
    "the handler of SIGINT": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    "the handler of SIGCHLD": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    "warnings that are errors": lambda: warnings.simplefilter("error", FutureWarning),
    "the locale": lambda: locale.setlocale(
        locale.LC_ALL, "C" if locale.setlocale(locale.LC_ALL) != "C" else "C.UTF-8"
    ),
    "NumPy's errors": lambda: np.seterr(under="raise"),
    "logging": lambda: logging.disable(logging.CRITICAL),
    "garbage collection": gc.disable,
    "sys.stdout": lambda: setattr(sys, "stdout", io.StringIO()),
    "the working directory": lambda: os.chdir("/"),
}


class Changing(ToyEnv):
    """Changes a setting when it is made, reset or stepped."""

    def __init__(self, change: Callable[[], object], when: str) -> None:
        super().__init__()
        self.change, self.when = change, when
        self.look("made")

    def look(self, when: str) -> None:
        if when == self.when:
            self.change()

    def reset(self, out: Any) -> None:
        self.look("reset")
        super().reset(out)

    def step(self, action: int, out: Any) -> Any:
        self.look("step")
        return super().step(action, out)


@pytest.fixture
def told(tmp_path, monkeypatch, caplog) -> Any:
    monkeypatch.chdir(tmp_path)
    topology.warn_once.cache_clear()
    with taking_back(all_settings()):
        yield caplog


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("when", ["made", "reset"])
def test_setting_that_environments_change_at_the_start_is_taken_back_and_told_once(
    name: str, when: str, told, tmp_path
) -> None:
    before = [each.get() for each in all_settings()]
    factory = partial(Changing, CHANGES[name], when)
    make.probe_spec(factory)  # after which nobody needs it
    assert Path.cwd() == tmp_path and not told.messages
    with SerialSampler(factory, num_envs=2):
        assert [each.get() for each in all_settings()] == before
    (message,) = told.messages
    assert message.startswith(f"environment toy has changed {name} of this process")
    assert Path.cwd() == Path("/" if name == "the working directory" else tmp_path)


@pytest.mark.parametrize("name", ["torch's gradient mode", "torch's threads", "torch's dtype"])
def test_setting_of_torch_that_a_step_changes_is_as_before_for_the_learner(name: str, told) -> None:
    before = [each.get() for each in all_settings()]
    with SerialSampler(partial(Changing, CHANGES[name], "step"), num_envs=2) as sampler:
        for _ in range(2):
            sampler.collect(zeros)
            assert [each.get() for each in all_settings()] == before
    assert len(told.messages) == 1 and name in told.messages[0]


class Moving(Changing):
    """Moves to another directory, takes Ctrl-C, and records no gradients."""

    def __init__(self) -> None:
        super().__init__(lambda: None, "made")
        os.chdir("/")
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def step(self, action: int, out: Any) -> Any:
        torch.set_grad_enabled(False)
        return super().step(action, out)


@SLOW
def test_run_in_this_process_and_its_evaluation_are_where_they_were_begun(told, tmp_path) -> None:
    handler = signal.getsignal(signal.SIGINT)
    trained(Path("runs/mine"), f"env={__name__}:Moving", "algo=a2c", "num_workers=0", "tracker=[]")
    assert Path.cwd() == tmp_path and signal.getsignal(signal.SIGINT) is handler
    evaluate_run("runs/mine", EvaluateOptions(num_steps=4, num_envs=2, num_workers=0), quiet())
    assert Path.cwd() == tmp_path
    files = {path.name for path in (tmp_path / "runs" / "mine").iterdir()}
    assert files >= {"config.yaml", "metrics.csv", "train.log", "evaluation.json"}
    with undrawn():
        train(parse_arguments(["resume=runs/mine", "total_steps=80"]), quiet())
