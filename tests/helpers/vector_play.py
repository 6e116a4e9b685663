"""Two vector environments that are played side by side, and must be the same."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode


def assert_same(one: Any, other: Any) -> None:
    """Values of any space, of the same dtypes."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), [other[key] for key in one]
    if isinstance(one, tuple | list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
        return
    assert (one is None) == (other is None)
    if one is not None:
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype and np.array_equal(one, other)


def only(infos: dict[str, Any], keys: Iterable[str]) -> dict[str, list[float]]:
    """What infos have of these keys, and their masks, as numbers."""
    names = [name for key in keys for name in (key, f"_{key}") if name in infos]
    return {name: np.ravel(infos[name]).astype(float).tolist() for name in names}


def play_both(
    ours: Any, theirs: Any, actions: Sequence[Any], seed: Any = None, keys: Sequence[str] = ()
) -> set[str]:
    """Play the same actions and compare everything, infos by ``keys``; names of infos seen."""
    assert_same(ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0])
    names: set[str] = set()
    for action in actions:
        observation, reward, *ends, infos = ours.step(action)
        expected, their_reward, *their_ends, their_infos = theirs.step(action)
        assert_same(observation, expected)
        assert their_reward.dtype in (reward.dtype, np.float32)
        assert np.array_equal(reward, their_reward.astype(np.float32))
        assert_same(ends, their_ends)
        assert only(infos, keys) == only(their_infos, keys)
        names |= set(infos)
        assert ("final_obs" in infos) == ("final_obs" in their_infos)
        if "final_obs" in infos:
            assert_same(infos["_final_obs"], their_infos["_final_obs"])
            assert_same(list(infos["final_obs"]), list(their_infos["final_obs"]))
            final, their_final = infos["final_info"], their_infos["final_info"]
            assert only(final, keys) == only(their_final, keys)
            names |= set(final)
        done = ends[0] | ends[1]
        if ours.metadata["autoreset_mode"] is AutoresetMode.DISABLED and done.any():
            mask = {"reset_mask": done}
            assert_same(ours.reset(options=mask)[0], theirs.reset(options=dict(mask))[0])
            assert mask["reset_mask"] is done  # the caller's options stay as they are
    return names
