"""Which observation, flag and info of `VectorEnv` comes when, in each autoreset mode.

The tables are written from what Gymnasium documents of the modes, and from the docstring of
`VectorEnv` for lost lives. All play the same games: ``.l.t`` with a lost life, ``.c`` cut off,
``b`` over and cut off at once.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tiers import processes
from toy_envs import ScriptedEnv

from accel_rl.samplers import SamplerError
from accel_rl.vector import VectorEnv

GAMES = (".l.t", ".c", "b", ".....")

# What one step returns: its letter ("-": it took no action), then observation, terminated,
# truncated, episode_ended.
NEXT_STEP = [
    (".", (1, 0, 1), 0, 0, 0),
    ("l", (1, 1, 0), 1, 0, 0),
    ("-", (1, 1, 0), 0, 0, 0),  # the game goes on, and is not reset
    (".", (1, 1, 1), 0, 0, 0),
    ("t", (1, 1, 2), 1, 0, 1),
    ("-", (2, 0, 0), 0, 0, 0),
    (".", (2, 0, 1), 0, 0, 0),
    ("c", (2, 0, 2), 0, 1, 1),
    ("-", (3, 0, 0), 0, 0, 0),
    ("b", (3, 0, 1), 1, 1, 1),
    ("-", (4, 0, 0), 0, 0, 0),
    (".", (4, 0, 1), 0, 0, 0),
]
# The same, and the final observation.
SAME_STEP = [
    (".", (1, 0, 1), 0, 0, 0, None),
    ("l", (1, 1, 0), 1, 0, 0, (1, 1, 0)),
    (".", (1, 1, 1), 0, 0, 0, None),
    ("t", (2, 0, 0), 1, 0, 1, (1, 1, 2)),
    (".", (2, 0, 1), 0, 0, 0, None),
    ("c", (3, 0, 0), 0, 1, 1, (2, 0, 2)),
    ("b", (4, 0, 0), 1, 1, 1, (3, 0, 1)),
    (".", (4, 0, 1), 0, 0, 0, None),
]
# The same, and what the reset with a mask returns that must follow.
DISABLED = [
    (".", (1, 0, 1), 0, 0, 0, None),
    ("l", (1, 1, 0), 1, 0, 0, (1, 1, 0)),  # the game goes on, and is not reset
    (".", (1, 1, 1), 0, 0, 0, None),
    ("t", (1, 1, 2), 1, 0, 1, (2, 0, 0)),
    (".", (2, 0, 1), 0, 0, 0, None),
    ("c", (2, 0, 2), 0, 1, 1, (3, 0, 0)),
    ("b", (3, 0, 1), 1, 1, 1, (4, 0, 0)),
    (".", (4, 0, 1), 0, 0, 0, None),
]


def scripted(mode: AutoresetMode, **options: Any) -> VectorEnv:
    options = {"num_workers": 0, **options}
    return VectorEnv(partial(ScriptedEnv, *GAMES), 2, autoreset_mode=mode, **options)


def check_step(row: Any, action: int, results: Any) -> dict[str, Any]:
    """Compares all but final observations, for both environments; returns the infos."""
    letter, observation, terminated, truncated, ended = row[:5]
    steps = letter != "-"
    got, rewards, is_terminated, is_truncated, infos = results
    assert got.tolist() == [list(observation)] * 2, row
    assert rewards.tolist() == [action if steps else 0] * 2, row
    assert is_terminated.tolist() == [bool(terminated)] * 2, row
    assert is_truncated.tolist() == [bool(truncated)] * 2, row
    assert infos["raw_reward"].tolist() == [100 + action if steps else 0] * 2, row
    assert infos["episode_ended"].tolist() == [bool(ended)] * 2, row
    assert infos["_raw_reward"].tolist() == infos["_episode_ended"].tolist() == [steps] * 2, row
    return infos


def test_next_step_mode_resets_in_the_step_after_the_end() -> None:
    env = scripted(AutoresetMode.NEXT_STEP)
    assert env.reset()[0].tolist() == [[1, 0, 0]] * 2
    for number, row in enumerate(NEXT_STEP):
        action = number % 4
        infos = check_step(row, action, env.step([action, action]))
        assert not {"final_obs", "final_info"} & set(infos)


@pytest.mark.parametrize("num_workers", [0, processes(1)])
def test_same_step_mode_resets_at_once_and_keeps_the_last_observation(num_workers: int) -> None:
    env = scripted(AutoresetMode.SAME_STEP, num_workers=num_workers)
    assert env.reset()[0].tolist() == [[1, 0, 0]] * 2
    for number, (*row, final) in enumerate(SAME_STEP):
        action = number % 4
        infos = check_step(row, action, env.step([action, action]))
        if final is None:
            assert not {"final_obs", "final_info"} & set(infos)
            continue
        assert [each.tolist() for each in infos["final_obs"]] == [list(final)] * 2
        assert infos["_final_obs"].all() and infos["_final_info"].all()
        assert infos["final_info"]["raw_reward"].tolist() == [100 + action] * 2
        assert infos["final_info"]["episode_ended"].tolist() == [bool(row[4])] * 2


def test_disabled_mode_waits_for_a_reset_with_a_mask() -> None:
    env = scripted(AutoresetMode.DISABLED)
    assert env.reset()[0].tolist() == [[1, 0, 0]] * 2
    for number, (*row, first) in enumerate(DISABLED):
        action = number % 4
        infos = check_step(row, action, env.step([action, action]))
        assert not {"final_obs", "final_info"} & set(infos)
        if first is not None:
            with pytest.raises(SamplerError, match=r"environments \[0, 1\] have ended, and autor"):
                env.step([0, 0])
            mask = np.array([True, False])
            observation, _ = env.reset(options={"reset_mask": mask})
            assert observation.tolist() == [list(first), list(row[1])]  # the other: as it was
            with pytest.raises(SamplerError, match=r"environments \[1\] have ended, and autoreset"):
                env.step([0, 0])
            observation, _ = env.reset(options={"reset_mask": ~mask})
            assert observation.tolist() == [list(first)] * 2


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_reset_without_a_mask_or_with_a_seed_starts_new_games(mode: AutoresetMode) -> None:
    env = scripted(mode)
    env.reset()
    env.step([0, 0])
    env.step([0, 0])  # has lost a life
    assert env.reset()[0].tolist() == [[2, 0, 0]] * 2
    # What follows is a step, also where the lost life would have made it an idle one.
    assert env.step([0, 0])[0].tolist() == [[2, 0, 1]] * 2
    mask = np.array([False, True])
    assert env.reset(seed=[None, 5], options={"reset_mask": mask})[0].tolist() == [
        [2, 0, 1],
        [3, 0, 0],
    ]
