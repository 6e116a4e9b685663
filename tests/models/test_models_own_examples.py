"""The observations that networks of the user's own are tried on."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from own_networks import A, Net
from saved_runs import quiet, trained
from torch import Tensor, nn

from accel_rl.models import QHead, make_model
from accel_rl.spaces import Leaf
from accel_rl.tools.evaluate import EvaluateOptions, evaluate_run

ONE_TO_FIVE = np.array([[1, 5, 2], [4, 4, 1]])


# ---- an environment whose observations are never 0 -----------------------------------------------


class OneToFive(gymnasium.Env):
    observation_space = spaces.Box(1, 5, (3,), np.int64)
    action_space = spaces.Discrete(A)

    def reset(self, **options: Any) -> Any:
        super().reset(seed=options.get("seed"))
        return self.np_random.integers(1, 6, 3), {}

    def step(self, action: int) -> Any:
        return self.np_random.integers(1, 6, 3), 1.0, False, self.np_random.random() < 0.5, {}


class Words(Net):
    """An embedding for each of the numbers 1 to 5."""

    def __init__(self, observation_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__(nn.Embedding(5, 8))

    def forward(self, observation: Tensor) -> Any:
        x = self.trunk(observation - 1).mean(1)
        return self.policy(x), self.value(x).squeeze(1)


def words_of_actions(**arguments: Any) -> nn.Module:
    head = nn.Linear(15, A * arguments["num_atoms"])
    unflatten = nn.Unflatten(1, (A, arguments["num_atoms"]))
    return nn.Sequential(Lower(), nn.Embedding(5, 5), nn.Flatten(), head, unflatten)


class Lower(nn.Module):
    def forward(self, observation: Tensor) -> Tensor:
        return observation - 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("algo=a2c", "model=test_models_own_examples:Words", "horizon=5"),
        (
            *("algo=dqn", "model=test_models_own_examples:words_of_actions", "horizon=4"),
            *("learning_starts=20", "buffer_size=200", "batch_size=8"),
        ),
    ],
    ids=["a2c", "dqn"],
)
def test_network_that_takes_the_environment_s_observations_alone_is_trained(
    options: tuple[str, ...], tmp_path
) -> None:
    run_dir = trained(tmp_path / "run", "env=test_models_own_examples:OneToFive", *options)
    assert (
        evaluate_run(run_dir, EvaluateOptions(num_steps=50, num_workers=0), quiet()).num_games > 0
    )


@pytest.mark.parametrize(("head", "name"), [(A, "Words"), (QHead(A), "words_of_actions")])
def test_network_is_tried_on_the_observations_that_are_given_or_told_which(
    head: Any, name: str
) -> None:
    arguments = f"{__name__}:{name}", Leaf((3,), np.dtype(np.int64)), head
    assert len(list(make_model(*arguments, observations=ONE_TO_FIVE).parameters())) > 0
    with pytest.raises(ValueError, match=r"on observations int64 \[2, 3\] failed: IndexError"):
        make_model(*arguments)
