"""What a run says before it begins."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_rl.cli.parse import parse_arguments
from accel_rl.training.build import build
from accel_rl.training.train import ALONE, first_lines

CATCH = "env=catch num_workers=0"
FEW = "env=catch num_envs=2 num_groups=2 total_steps=60"


def lines(options: str) -> str:
    parts = build(parse_arguments([*options.split(), "decorrelation_steps=0"]))
    run: Any = SimpleNamespace(
        config=parts.config,
        team=ALONE,
        run_dir=Path("run"),
        describe=lambda: "",
        device=parts.device,
        initial=parts.initial,
    )
    run.sampler, run.agent = parts.sampler, parts.agent
    try:
        return "\n".join(first_lines(run, None))
    finally:
        parts.close(waits=True)


@pytest.mark.parametrize(
    ("options", "words", "is_said"),
    [
        (f"{CATCH} num_envs=4 total_steps=9", "total_steps=9 is rounded up to 20", True),
        (f"{CATCH} num_envs=4 total_steps=9", "smaller horizon or num_envs", True),
        (f"{CATCH} num_envs=4 total_steps=15", "smaller horizon or num_envs", False),
        (f"{CATCH} memory=lstm horizon=1", "use a larger horizon", True),
        ("env=FrozenLake-v1 num_workers=0", "FlattenObservation", True),
    ],
)
def test_what_people_should_know_is_said(options: str, words: str, is_said: bool) -> None:
    assert (words in lines(options)) == is_said


@pytest.mark.parametrize(
    ("precision", "capability", "is_said"),
    [("bfloat16", "AVX2", True), ("bfloat16", "AVX512", False), ("float32", "AVX2", False)],
)
def test_slow_bfloat16_is_said(
    precision: str, capability: str, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert ("slower than float32" in lines(f"{CATCH} precision={precision}")) == is_said
