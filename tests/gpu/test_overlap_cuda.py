"""Sampling while the learner works, each on a stream of its own."""

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from accel_rl.algos import A2C
from accel_rl.cli.parse import parse_arguments
from accel_rl.graphs import Recorded
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint
from accel_rl.samplers import ActionServer
from accel_rl.training.train import train

SMALL = ("env=catch", "num_envs=16", "num_workers=2", "log_interval=400", "overlap=true")
ALGORITHMS = {
    "a2c": ("algo=a2c",),
    "ppo": ("algo=ppo", "horizon=20", "epochs=2"),
    "lstm": ("algo=ppo", "horizon=20", "epochs=2", "memory=lstm"),
    "dqn": ("algo=dqn", "horizon=4", "batch_size=16", "learning_starts=400", "buffer_size=4000"),
}
ALGORITHMS["r2d2"] = (*ALGORITHMS["dqn"], "memory=lstm", "sequence_length=4", "burn_in=2")


def parameters(run_dir: Path, *arguments: str) -> dict[str, torch.Tensor]:
    config = parse_arguments([*SMALL, *arguments, f"run_dir={run_dir}"])
    train(config, Console(file=io.StringIO()))
    return load_checkpoint(list_checkpoints(run_dir)[-1])["learner"]["parameters"]


@pytest.mark.parametrize("algo", ["a2c", "lstm"])
def test_overlapped_run_on_a_gpu_learns_what_it_does_on_the_cpu(algo: str, tmp_path: Path) -> None:
    """Few steps: later on, roundings choose other actions. Draws from a replay differ anyway, as
    do PPO's minibatches, so that it has one."""
    arguments = [*ALGORITHMS[algo], "total_steps=960"]
    arguments += ["minibatch_size=320"] * (algo != "a2c")
    on_cpu = parameters(tmp_path / "cpu", *arguments, "device=cpu")
    on_gpu = parameters(tmp_path / "gpu", *arguments, "device=cuda")
    for name, expected in on_cpu.items():
        torch.testing.assert_close(on_gpu[name], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("algo", ["dqn", "r2d2"])
def test_recorded_overlapped_run_learns_what_it_does_without_graphs(
    algo: str, tmp_path: Path
) -> None:
    """Graphs are recorded in one thread while the other acts."""
    arguments = [*ALGORITHMS[algo], "total_steps=800", "device=cuda"]
    recorded = parameters(tmp_path / "on", *arguments, "cuda_graphs=on")
    eager = parameters(tmp_path / "off", *arguments, "cuda_graphs=off")
    for name, expected in eager.items():
        torch.testing.assert_close(recorded[name], expected, rtol=1e-3, atol=1e-3)


def test_overlapped_runs_of_one_seed_are_alike(tmp_path: Path) -> None:
    """A race between the streams would show as other parameters."""
    arguments = [*ALGORITHMS["ppo"], "minibatch_size=80", "total_steps=1600", "device=cuda"]
    one = parameters(tmp_path / "one", *arguments)
    two = parameters(tmp_path / "two", *arguments)
    for name, expected in one.items():
        torch.testing.assert_close(two[name], expected, rtol=1e-3, atol=1e-3)


def test_end_of_a_run_tells_how_much_was_done_by_graphs(tmp_path: Path) -> None:
    arguments = [*SMALL, *ALGORITHMS["a2c"], "total_steps=2400", "device=cuda"]
    config = parse_arguments([*arguments, f"run_dir={tmp_path / 'run'}"])
    status = train(config, Console(file=io.StringIO())).status
    assert status is not None
    told = re.fullmatch(
        r"\d+\.\d\d GB of memory; (\d+) graphs, in (\d+) % of updates and (\d+) % of actions",
        status.gpu,
    )
    assert told is not None and int(told[1]) > 2 and 50 < int(told[2]) < 100 > int(told[3]) > 50


def test_acting_goes_before_learning_in_a_stream_of_higher_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And threads switch quickly, since both have much to enqueue."""
    seen: dict[str, set[tuple[int, float]]] = {}
    recorded: dict[str, set[int]] = {}
    record = Recorded._record

    def note_recording(self: Recorded, *given: Any) -> None:
        recorded.setdefault(self._kind, set()).add(torch.cuda.current_stream().priority)
        record(self, *given)

    def note(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            priority = torch.cuda.current_stream().priority
            seen.setdefault(name, set()).add((priority, sys.getswitchinterval()))
            return call(*arguments)

        return noted

    monkeypatch.setattr(ActionServer, "__call__", note("act", ActionServer.__call__))
    monkeypatch.setattr(ActionServer, "finish", note("finish", ActionServer.finish))
    monkeypatch.setattr(A2C, "update", note("update", A2C.update))
    monkeypatch.setattr(Recorded, "_record", note_recording)
    before = sys.getswitchinterval()
    parameters(tmp_path / "run", "algo=a2c", "device=cuda", "total_steps=800")
    assert sys.getswitchinterval() == before
    ((acting, quick),) = seen["act"]
    assert acting < 0 and seen["finish"] == {(acting, quick)}
    assert seen["update"] == {(0, quick)} and quick == pytest.approx(1e-4)
    assert recorded == {"actions": {acting}, "updates": {0}}  # which replays keep
