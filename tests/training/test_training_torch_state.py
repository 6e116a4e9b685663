"""Training in programs that have set torch up for themselves."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from run_files import parameters_of
from saved_runs import Pay, quiet, trained

from accel_rl.cli.parse import parse_arguments
from accel_rl.envs import StepResult
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint
from accel_rl.tools.policy import load_policy
from accel_rl.training import records
from accel_rl.training.train import train


@pytest.mark.parametrize(
    "mode", [torch.inference_mode, pytest.param(torch.no_grad, marks=pytest.mark.slow)]
)
def test_run_is_the_same_within_modes_that_record_no_gradients(mode, tmp_path: Path) -> None:
    expected = parameters_of(trained(tmp_path / "plain", "env=catch"))
    with mode():
        found = parameters_of(trained(tmp_path / "run", "env=catch"))
        load_policy(tmp_path / "run")
        assert not torch.is_grad_enabled()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_defaults_that_are_not_torch_s_own_are_refused(tmp_path: Path) -> None:
    run_dir = trained(tmp_path / "run", "env=catch")
    message = r"torch makes tensors of torch.float64 on cpu here; .* call torch.set_def"
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match=message):
            trained(tmp_path / "other", "env=catch")
        with pytest.raises(ValueError, match=message):
            load_policy(run_dir)
    finally:
        torch.set_default_dtype(torch.float32)
    assert not (tmp_path / "other").exists()
    with torch.device("meta"), pytest.raises(ValueError, match=r"of torch.float32 on meta"):
        load_policy(run_dir)


class Drawing(Pay):
    """Notes a number that torch draws at each step."""

    drawn: ClassVar[list[float]] = []

    def step(self, action: int, out: Any) -> StepResult:
        self.drawn.append(torch.rand(()).item())
        return super().step(action, out)


@pytest.mark.slow
def test_resumed_run_goes_on_with_the_random_numbers_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "draw_or_warn", lambda *_, **__: True)  # to be quick
    run_dir = trained(tmp_path / "run", "env=test_training_torch_state:Drawing")
    g = torch.Generator()
    g.set_state(load_checkpoint(list_checkpoints(run_dir)[-1])["torch_rng"])
    Drawing.drawn.clear()
    train(parse_arguments([f"resume={run_dir}", "total_steps=80"]), quiet())
    assert Drawing.drawn == [torch.rand((), generator=g).item() for _ in range(40)]
