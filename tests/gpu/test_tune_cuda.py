"""``accel_rl tune`` on a GPU: two samplers register memory at a time, and all of it is released."""

import pytest
import torch

from accel_rl.__main__ import main
from accel_rl.cli import tune

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_layouts_follow_each_other_on_the_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    neighbours = tune.neighbours
    monkeypatch.setattr(tune, "neighbours", lambda *given: neighbours(*given)[:2])
    monkeypatch.setattr(tune, "SECONDS", 60.0)  # two layouts take a few, also under load
    monkeypatch.setattr(tune, "WINDOW_SECONDS", 0.05)
    assert main(["tune", "env=catch", "num_envs=8", "device=cuda"]) == 0
    assert capsys.readouterr().err.count("against") > 0
