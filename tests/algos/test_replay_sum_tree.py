"""The sum tree against NumPy's running sum."""

import numpy as np
import pytest
import torch

from accel_rl.algos.replay import SumTree

CPU = torch.device("cpu")
SIZES = pytest.mark.parametrize("size", [1, 127, 128, 129, 1025, 40_000])


def slow_find(priority: np.ndarray, mass: float) -> int:
    return int(np.searchsorted(np.cumsum(priority), mass, side="right"))


@SIZES
def test_leaves_are_found_where_the_running_sum_exceeds_the_mass(size: int) -> None:
    rng = np.random.default_rng(0)
    priority = rng.integers(0, 5, size).astype(float)  # integers: sums are exact
    priority[size // 2] = 1
    tree = SumTree(size, CPU)
    tree.set_range(0, torch.from_numpy(priority))
    assert tree.total.item() == priority.sum()
    masses = np.concatenate(
        [rng.random(200) * priority.sum(), np.arange(min(priority.sum(), 100), dtype=float)]
    )
    found = tree.find(torch.from_numpy(masses)).tolist()
    assert found == [slow_find(priority, mass) for mass in masses]


@SIZES
def test_sums_stay_right_through_writes_of_either_kind(size: int) -> None:
    rng = np.random.default_rng(1)
    priority = np.zeros(size)
    tree = SumTree(size, CPU)
    for _ in range(30):
        index = rng.integers(0, size, 7)
        values = rng.integers(0, 9, size).astype(float)
        priority[index] = values[index]
        tree.set(torch.from_numpy(index), torch.from_numpy(values[index]))  # some of them twice
        start, stop = sorted(rng.integers(0, size + 1, 2))
        priority[start:stop] = values[start:stop]
        tree.set_range(int(start), torch.from_numpy(values[start:stop]))
        assert tree.total.item() == priority.sum()
        np.testing.assert_array_equal(tree.get(torch.arange(size)).numpy(), priority)
        if priority.sum():
            masses = rng.random(20) * priority.sum()
            found = tree.find(torch.from_numpy(masses)).tolist()
            assert found == [slow_find(priority, mass) for mass in masses]


def test_leaf_of_priority_zero_is_never_found_at_the_very_end() -> None:
    priority = torch.zeros(100, dtype=torch.float64)
    priority[:5] = 0.1  # the running sum rounds
    tree = SumTree(100, CPU)
    tree.set_range(0, priority)
    total = tree.total
    masses = torch.stack((total, total * (1 - 1e-16), total * (1 + 1e-15)))
    assert tree.find(masses).tolist() == [4, 4, 4]
