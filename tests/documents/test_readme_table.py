"""The README's table of algorithms and spaces says what presets do."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from documents import ROOT

from accel_rl.cli.index import read_index
from accel_rl.envs import EnvSpec
from accel_rl.presets import PRESETS
from accel_rl.spaces import Leaf, Space, discrete
from accel_rl.training.build import agent_of

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "README.md").read_text().splitlines()
    if line.startswith("|") and "`" in line
]
CELLS = {name: row[2:] for row in ROWS for name in re.findall(r"`(\w+)`", row[1])}
LEARNERS = {"in step": "synchronous", "store": "asynchronous", "one": "one"}
VECTOR, FLOATS = Leaf((3,), np.float32), Leaf((2,), np.float32, -1, 1)
MULTI = Leaf((2,), np.int64, 0, 2)
MASK = Leaf((2,), np.int8, 0, 1)


def learns(name: str, observation: Space, action: Space) -> bool:
    """Whether the preset has an agent for these spaces."""
    spec = EnvSpec(name="made up", observation=observation, action=action)
    try:
        config = replace(PRESETS[name](), model="auto")
        agent_of(config, spec, torch.device("cpu"))
    except ValueError:
        return False
    return True


def test_table_has_every_preset() -> None:
    assert set(CELLS) == set(PRESETS)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_table_says_what_a_preset_learns(name: str) -> None:
    preset = read_index().presets[name]
    plain = FLOATS if name == "sac" else discrete(2)
    found = [
        learns(name, VECTOR, discrete(2)),
        learns(name, VECTOR, FLOATS),
        learns(name, VECTOR, MULTI) and learns(name, VECTOR, {"a": plain, "b": FLOATS}),
        learns(name, {"a": VECTOR, "b": VECTOR}, plain),
        learns(name, {"observation": VECTOR, "action_mask": MASK}, discrete(2)),
        preset.has_memory,
    ]
    learners = LEARNERS[preset.learners]
    assert [*("yes" if each else "-" for each in found), learners] == CELLS[name]
