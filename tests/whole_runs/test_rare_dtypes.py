"""Runs with dtypes of observations and actions for which torch lacks some operations."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from saved_runs import Q_LEARNING, trained

WITH_MEMORY = ("memory=lstm", "sequence_length=4", "burn_in=2", "learning_starts=32")


class Sensor(gymnasium.Env[Any, Any]):
    """Observes unsigned integers of 16 bits; a time limit ends episodes."""

    observation_space = spaces.Box(0, 60_000, (2,), np.uint16)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), 1.0, False, self.t == 5, {}

    def observe(self) -> Any:
        return np.full(2, 50_000 + self.t, np.uint16)


class Pushed(Sensor):
    action_space = spaces.Box(-1, 1, (2,), np.float16)


@pytest.mark.parametrize(
    "options",
    [
        ("algo=dqn", "env=test_rare_dtypes:Sensor"),
        ("algo=dqn", "env=test_rare_dtypes:Sensor", *WITH_MEMORY),
        ("algo=sac", "env=test_rare_dtypes:Pushed", "precision=bfloat16"),
    ],
    ids=" ".join,
)
def test_run_learns_to_its_end(options: tuple[str, ...], tmp_path: Path) -> None:
    keys = {option.partition("=")[0] for option in options}
    kept = (option for option in Q_LEARNING if option.partition("=")[0] not in keys)
    path = trained(tmp_path / "run", *kept, *options)
    assert list((path / "checkpoints").iterdir())
