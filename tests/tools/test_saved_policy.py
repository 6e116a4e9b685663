"""What `load_policy` takes: one observation or a batch, of any form that holds its values."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from saved_runs import trained

from accel_rl.runs.tables import read_rows
from accel_rl.tools.policy import SavedPolicy, load_policy

PLACE = [0.5, 3.0]


class Goal(gymnasium.Env[Any, Any]):
    """Observes a goal and a place, which may lie beyond its bounds."""

    observation_space = Dict({"goal": Discrete(4), "place": Box(-1, 1, (2,))})
    action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"goal": 3, "place": np.array(PLACE, np.float32)}, {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 1.0, True, False, {}


class Place(Goal):
    observation_space = Goal.observation_space["place"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.array(PLACE, np.float32), {}


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SavedPolicy]:
    folder = tmp_path_factory.mktemp("runs")
    runs = {name: f"env=test_saved_policy:{name}" for name in ("Goal", "Place")}
    return {
        name: load_policy(trained(folder / name, env), greedy=True) for name, env in runs.items()
    }


@pytest.mark.parametrize(
    "make",
    [np.array, np.float64, np.float32, list, torch.tensor],
    ids=["float64", "double", "float32", "list", "tensor"],
)
def test_one_observation_gives_the_action_that_a_batch_of_it_gives(policies, make: Any) -> None:
    one, batch = make(PLACE), make([PLACE, PLACE])
    action = policies["Place"](one)
    assert np.shape(action) == () and policies["Place"](batch).tolist() == [action, action]
    action = policies["Goal"]({"goal": 3, "place": one})
    assert np.shape(action) == ()
    assert policies["Goal"]({"goal": [3, 3], "place": batch}).tolist() == [action, action]


@pytest.mark.parametrize(
    ("name", "given", "tokens"),
    [
        ("Place", (np.zeros(2), {}), "observations.*no array"),
        ("Place", np.zeros((1, 3)), r"observations.*\[2\]"),
        ("Goal", {"goal": [9], "place": [PLACE]}, r"observation\['goal'\].*9.*0 .. 3"),
        ("Goal", {"place": PLACE}, "observations.*keys"),
        ("Goal", {"goal": 3, "place": [PLACE]}, "observation"),
    ],
)
def test_what_is_no_observation_is_named_as_such(policies, name, given, tokens: str) -> None:
    with pytest.raises(ValueError, match=tokens) as refused:
        policies[name](given)
    assert "actions" not in str(refused.value)


def test_learning_rate_is_a_column(tmp_path: Path) -> None:
    for algo, expected in (("a2c", 7e-4 * (2 / 16) ** 0.5), ("ppo", 1e-3 / 2)):
        options = (f"algo={algo}", "env=catch", "horizon=10", "minibatch_size=20")
        run = trained(tmp_path / algo, *options[: 3 + (algo == "ppo")], "log_interval=20")
        rows = read_rows(run / "metrics.csv")
        assert float(rows[-1]["learning_rate"]) == pytest.approx(expected), rows
