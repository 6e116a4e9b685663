"""Training in programs that have set torch up for themselves."""

from pathlib import Path

import pytest
import torch
from run_files import parameters_of
from saved_runs import trained

from accel_rl.tools.policy import load_policy


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
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
