"""Distributions of actions, against those of torch and against frequencies."""

from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch import distributions as reference

from accel_rl.agents import make_distribution
from accel_rl.agents.distributions import Distribution, standard_normal
from accel_rl.samplers.base import noise_shape
from accel_rl.spaces import Leaf, Space, discrete

pytestmark = pytest.mark.numeric
CPU = torch.device("cpu")

FLOATS = Leaf((2, 2), np.dtype(np.float32), -1, 1)
INTEGERS = Leaf((3,), np.dtype(np.int64), (0, -1, 5), (1, 2, 9))
BOOLEANS = Leaf((4,), np.dtype(np.bool_))
FAR = Leaf((5,), np.dtype(np.float64), (100, 3, -np.inf, 1e6, 7), (200, np.inf, -9, 1e6 + 1, 7))
UNITS = {FAR: [(150, 50), (4, 1), (-10, 1), (1e6 + 0.5, 0.5), (7, 1)]}
"""Middle and unit of each float; of others 0 and 1."""
SPACES: dict[str, Space] = {
    "far": FAR,
    "discrete": discrete(5),
    "start": Leaf((), np.dtype(np.int64), 3, 6),
    "integers": INTEGERS,
    "booleans": BOOLEANS,
    "floats": FLOATS,
    "nested": {"inner": {"x": Leaf((), np.dtype(np.float32), -1, 1)}, "tool": discrete(2)},
    "mapping": {"move": FLOATS, "tool": discrete(3), "inner": {"keys": BOOLEANS, "x": FLOATS}},
}


def slow(space: Space, own: Tensor, free: Tensor, action: Any) -> tuple[float, float]:
    """Log-probability and entropy of one action, leaf by leaf and element by element, by torch."""
    if not isinstance(space, Leaf):
        total = np.zeros(2)
        for name, each in space.items():
            n, f = sizes(each)
            total += slow(each, own[:n], free[:f], action[name])
            own, free = own[n:], free[f:]
        return tuple(total)
    values = np.ravel(action)
    if space.dtype.kind == "f":
        units = UNITS.get(space, [(0, 1)] * len(values))
        each = [
            reference.Normal(middle + unit * own[i], unit * free[i].exp())
            for i, (middle, unit) in enumerate(units)
        ]
        drawn = values.astype(np.float64)
    else:
        counts = space.counts or [2] * prod(space.shape)
        low = np.zeros(len(counts)) if space.bounds[0] is None else space.bounds[0].ravel()
        each = [reference.Categorical(logits=part) for part in own.split(counts)]
        drawn = [int(value) - int(first) for value, first in zip(values, low, strict=True)]
    pairs = zip(each, drawn, strict=True)
    log_prob = sum(float(one.log_prob(torch.tensor(value).double())) for one, value in pairs)
    return log_prob, sum(float(one.entropy()) for one in each)


def sizes(space: Space) -> tuple[int, int]:
    """How many numbers depend on the observation, and how many do not."""
    if not isinstance(space, Leaf):
        found = [sizes(each) for each in space.values()]
        return sum(n for n, _ in found), sum(f for _, f in found)
    if space.dtype.kind == "f":
        return prod(space.shape), prod(space.shape)
    return sum(space.counts or [2] * prod(space.shape)), 0


def set_deviations(distribution: Distribution, logarithms: Tensor) -> None:
    for each in distribution.parameters():
        each.data, logarithms = logarithms[: each.numel()], logarithms[each.numel() :]


def noise_for(distribution: Distribution, N: int) -> Tensor:
    shape = noise_shape((N,), distribution.num_noise)
    return torch.rand(shape, dtype=torch.float64)


def pick(action: Any, i: int) -> Any:
    if isinstance(action, dict):
        return {name: pick(each, i) for name, each in action.items()}
    return action[i].numpy()


@pytest.mark.parametrize("name", SPACES)
def test_log_probability_and_entropy_are_those_of_the_parts(name: str) -> None:
    space, N = SPACES[name], 6
    distribution = make_distribution(space, CPU)
    n, free = sizes(space)
    deviations = torch.randn(free, dtype=torch.float64)
    set_deviations(distribution, deviations)
    outputs = torch.randn(N, n, dtype=torch.float64)
    assert distribution.num_outputs == n
    action = distribution.draw(outputs, noise_for(distribution, N))
    found = distribution.evaluate(outputs, action)
    assert torch.equal(distribution.log_prob(outputs, action), found.log_prob)
    for i in range(N):
        expected = slow(space, outputs[i], deviations, pick(action, i))
        both = found.log_prob[i].item(), found.entropy[i].item()
        assert np.allclose(both, expected, rtol=1e-5)


@pytest.mark.parametrize("name", SPACES)
def test_draws_have_the_dtype_and_shape_of_the_space_and_their_mode_is_the_likeliest(
    name: str,
) -> None:
    space, N = SPACES[name], 500
    distribution = make_distribution(space, CPU)
    outputs = torch.randn(1, distribution.num_outputs, dtype=torch.float64).expand(N, -1)
    noise = noise_for(distribution, N)
    drawn, mode = distribution.draw(outputs, noise), distribution.mode(outputs)
    assert again(drawn, distribution.draw(outputs, noise))
    check_form(space, drawn)
    check_form(space, mode)
    best = distribution.evaluate(outputs, mode).log_prob
    assert (best >= distribution.evaluate(outputs, drawn).log_prob - 1e-9).all()


def again(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(again(a[name], b[name]) for name in a)
    return torch.equal(a, b)


def check_form(space: Space, action: Any) -> None:
    if not isinstance(space, Leaf):
        assert list(action) == list(space)
        for name, each in space.items():
            check_form(each, action[name])
        return
    assert action.shape[1:] == space.shape and action.numpy().dtype == space.dtype
    if space.dtype.kind == "i":
        low, high = (bound.reshape(space.shape) for bound in space.bounds)
        assert (action.numpy() >= low).all() and (action.numpy() <= high).all()


def test_frequencies_of_integers_equal_their_softmax() -> None:
    N, rng = 40_000, np.random.default_rng(0)
    distribution = make_distribution(INTEGERS, CPU)
    logits = torch.from_numpy(rng.normal(size=distribution.num_outputs))
    action = distribution.draw(logits.expand(N, -1), torch.from_numpy(rng.random((N, 3)))).numpy()
    for i, (part, low) in enumerate(zip(logits.split([2, 4, 5]), (0, -1, 5), strict=True)):
        expected = part.softmax(0).numpy()
        found = np.bincount(action[:, i] - low, minlength=len(part)) / N
        assert (abs(found - expected) < 4 * np.sqrt(expected * (1 - expected) / N)).all()


def test_floats_have_their_means_and_deviations() -> None:
    N, rng = 40_000, np.random.default_rng(0)
    distribution = make_distribution(FLOATS, CPU)
    mean, log_std = torch.tensor([0.0, 1, -2, 30]).double(), torch.tensor([0.0, -1, 1, 0.5])
    set_deviations(distribution, log_std)
    action = distribution.draw(mean.expand(N, -1), torch.from_numpy(rng.random((N, 4))))
    action = action.view(N, 4).double()
    std = log_std.exp().double()
    assert ((action.mean(0) - mean).abs() < 4 * std / N**0.5).all()
    assert ((action.std(0) / std - 1).abs() < 0.02).all()
    assert (torch.corrcoef(action.T) - torch.eye(4)).abs().max() < 0.03


def test_floats_begin_in_the_middle_of_their_bounds_with_half_the_width_as_deviation() -> None:
    N = 1000
    outputs = torch.zeros(N, 5)
    for space, middle, deviation in (
        (FAR, *zip(*UNITS[FAR], strict=True)),
        (Leaf((5,), FAR.dtype, -3e307, 3e307), [0] * 5, [1] * 5),  # which are none
    ):
        drawn = make_distribution(space, CPU).draw(outputs, torch.rand(N, 5).double())
        error = 4 * torch.tensor(deviation) / N**0.5
        assert ((drawn.mean(0) - torch.tensor(middle)).abs() < error).all()
        torch.testing.assert_close(drawn.std(0), torch.tensor(deviation).double(), rtol=0.1, atol=0)
    own = make_distribution(FAR, CPU, in_units=False)
    torch.testing.assert_close(own.mode(outputs), torch.zeros(N, 5).double())


@pytest.mark.parametrize("space", [FLOATS, Leaf((4,), np.dtype(np.float32))], ids=["1", "none"])
def test_floats_between_minus_one_and_one_are_those_of_no_bounds_to_the_bit(space: Leaf) -> None:
    outputs, noise = torch.randn(50, 4), torch.rand(50, 4).double()
    found, plain = make_distribution(space, CPU), make_distribution(space, CPU, in_units=False)
    action = found.draw(outputs, noise)
    assert torch.equal(action, plain.draw(outputs, noise))
    for one, other in zip(
        found.evaluate(outputs, action), plain.evaluate(outputs, action), strict=True
    ):
        assert torch.equal(one, other)


def test_masked_integers_are_never_drawn_and_have_no_probability() -> None:
    distribution, N = make_distribution(INTEGERS, CPU), 2000
    mask = torch.tensor([[1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 1]]).expand(N, -1)
    outputs = distribution.mask(torch.randn(N, 11), mask).requires_grad_()
    for noise in (torch.rand(N, 3).double(), *torch.zeros(1, N, 3), *torch.ones(1, N, 3).double()):
        action = distribution.draw(outputs, noise.clamp(max=1 - 2**-53), mask)
        assert set(action[:, 0].tolist()) == {0}
        assert set(action[:, 1].tolist()) <= {0, 1} and set(action[:, 2].tolist()) <= {7, 9}
    found = distribution.evaluate(outputs, action)
    allowed = outputs.detach()[:, [3, 4]].double()
    one = reference.Categorical(logits=allowed).entropy()
    two = reference.Categorical(logits=outputs.detach()[:, [8, 10]].double()).entropy()
    assert torch.allclose(found.entropy.double(), one + two, atol=1e-5)
    (found.entropy.sum() + found.log_prob.sum()).backward()
    assert torch.isfinite(outputs.grad).all()


def test_masks_of_a_mapping_are_those_of_its_parts() -> None:
    space: Space = {"move": FLOATS, "tool": discrete(3)}
    distribution = make_distribution(space, CPU)
    outputs, mask = torch.randn(8, 7), {"tool": torch.tensor([[0, 1, 0]]).expand(8, -1)}
    masked = distribution.mask(outputs, mask)
    drawn = distribution.draw(masked, torch.rand(8, 5).double(), mask)
    assert drawn["tool"].tolist() == [1] * 8
    plain = make_distribution(FLOATS, CPU).evaluate(outputs[:, :4], drawn["move"])
    found = distribution.evaluate(masked, drawn)
    assert torch.allclose(found.log_prob, plain.log_prob, atol=1e-5)


def test_parts_of_a_mapping_are_drawn_from_numbers_of_their_own() -> None:
    N = 20_000
    space: Space = {"a": discrete(2), "b": BOOLEANS, "c": FLOATS}
    distribution = make_distribution(space, CPU)
    drawn = distribution.draw(torch.zeros(N, distribution.num_outputs), noise_for(distribution, N))
    numbers = torch.cat([each.reshape(N, -1).double() for each in drawn.values()], 1)
    assert distribution.num_noise == 9
    assert (torch.corrcoef(numbers.T) - torch.eye(9)).abs().max() < 0.03


def test_normal_numbers_are_finite_at_the_ends() -> None:
    ends = torch.tensor([0.0, 2.0**-53, 1 - 2.0**-53, 1.0], dtype=torch.float64)
    assert standard_normal(ends, 1).shape == (4, 1) and standard_normal(ends, 4).shape == (1, 4)
    assert torch.isfinite(standard_normal(ends, 2)).all()


def test_integers_without_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^actions are int64 of shape \[2\]; a policy can learn "):
        make_distribution(Leaf((2,), np.dtype(np.int64)), CPU)
