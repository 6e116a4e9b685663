"""Priorities of the steps of a replay memory: which have one, and how they are drawn by it."""

import numpy as np
import pytest
import torch
from replay_worlds import B, World, everything, make

from accel_rl.algos.replay import Priorities, Replay


def test_draws_where_no_step_is_valid_are_finite_and_not_valid() -> None:
    world, replay = World(stack=3, waits=False), make(stack=3)
    priorities = Priorities(replay, alpha=0.5, default=1.0)
    batch = world.rollout()
    replay.append(batch._replace(valid=torch.zeros_like(batch.valid)))
    priorities.follow()
    step, env, probability = priorities.draw(8, torch.Generator().manual_seed(0))
    assert probability.tolist() == [1.0] * 8
    assert not replay.gather(step, env).valid.any()


def leaves(replay: Replay, priorities: Priorities) -> dict[tuple[int, int], float]:
    """Priority of each step that has one above 0."""
    tree = priorities.get_state()["leaves"].view(replay.spec.num_slots, B)
    first = max(0, replay.num_stored - replay.spec.num_slots)
    return {
        (s, b): tree[s % replay.spec.num_slots, b].item()
        for s in range(first, max(replay.num_stored, replay.spec.num_slots))
        for b in range(B)
        if tree[s % replay.spec.num_slots, b] > 0
    }


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stack", [1, 3])
def test_exactly_the_valid_steps_have_a_priority_at_every_cursor(stack: int, n: int) -> None:
    world, replay = World(stack, waits=False), make(stack, n)
    priorities = Priorities(replay, alpha=0.5, default=4.0)
    for _ in range(20):
        replay.append(world.rollout())
        priorities.follow()
        batch = replay.gather(*everything(replay))
        drawable = zip(
            batch.step[batch.valid].tolist(), batch.env[batch.valid].tolist(), strict=True
        )
        assert leaves(replay, priorities) == dict.fromkeys(drawable, 2.0)


def filled(
    default: float = 1.0, alpha: float = 1.0, waits: bool = False
) -> tuple[World, Replay, Priorities]:
    world, replay = World(stack=1, waits=waits), make(stack=1)
    priorities = Priorities(replay, alpha, default)
    for _ in range(8):
        replay.append(world.rollout())
        priorities.follow()
    return world, replay, priorities


@pytest.mark.parametrize("alpha", [0.6, 1.0])
def test_draws_follow_priorities(alpha: float) -> None:
    _, replay, priorities = filled(alpha=alpha)
    step, env = (torch.tensor(each) for each in zip(*leaves(replay, priorities), strict=True))
    wanted = torch.rand(len(step), generator=torch.Generator().manual_seed(1)).double() + 0.1
    priorities.update(step, env, wanted)
    num = 20_000
    drawn, drawn_env, probability = priorities.draw(num, torch.Generator().manual_seed(0))
    cell = {(s, b): i for i, (s, b) in enumerate(zip(step.tolist(), env.tolist(), strict=True))}
    index = [cell[s, b] for s, b in zip(drawn.tolist(), drawn_env.tolist(), strict=True)]
    share = wanted**alpha / (wanted**alpha).sum()
    torch.testing.assert_close(probability, share[index])
    counts = np.bincount(index, minlength=len(share))
    # Stratified: each share of the sum gives one, so a leaf's count is exact up to its two ends.
    assert np.abs(counts - num * share.numpy()).max() <= 2


def test_late_priority_does_not_revive_an_overwritten_step() -> None:
    world, replay, priorities = filled()
    step, env, _ = priorities.draw(64, torch.Generator().manual_seed(0))
    for _ in range(7):  # more than the whole ring
        replay.append(world.rollout())
        priorities.follow()
    before = leaves(replay, priorities)
    priorities.update(step, env, torch.full((64,), 9.0))
    assert leaves(replay, priorities) == before


def test_priority_is_not_given_to_steps_that_cannot_be_drawn() -> None:
    _, replay, priorities = filled(waits=True)
    batch = replay.gather(*everything(replay))
    before = leaves(replay, priorities)
    assert not batch.valid.all()
    priorities.update(batch.step[~batch.valid], batch.env[~batch.valid], torch.tensor(5.0))
    assert leaves(replay, priorities) == before


def test_state_gives_the_same_draws_and_goes_on_alike() -> None:
    world, replay, priorities = filled()
    other = make(stack=1)
    other.set_state(replay.get_state())
    other_priorities = Priorities(other, 1.0, 1.0)
    other_priorities.set_state(priorities.get_state())
    for _ in range(3):
        batch = world.rollout()
        for each, its in ((replay, priorities), (other, other_priorities)):
            each.append(batch)
            its.follow()
        drawn, other_drawn = (
            each.draw(32, torch.Generator().manual_seed(2))
            for each in (priorities, other_priorities)
        )
        assert all(map(torch.equal, drawn, other_drawn))
        one, two = replay.gather(*drawn[:2]), other.gather(*other_drawn[:2])
        assert all(map(torch.equal, one, two))


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_step_of_priority_zero_is_drawn_no_more(alpha: float) -> None:
    _, replay, priorities = filled(alpha=alpha)
    gone, *rest = leaves(replay, priorities)
    step, env = (torch.tensor([each]) for each in gone)
    priorities.update(step, env, torch.tensor([0.0]))
    assert list(leaves(replay, priorities)) == rest
    priorities.update(step, env, torch.tensor([2.0]))
    assert list(leaves(replay, priorities)) == rest


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_priority_that_is_not_finite_leaves_what_was_before(broken: float) -> None:
    _, replay, priorities = filled()
    (first, env), (second, other) = list(leaves(replay, priorities))[:2]
    priorities.update(torch.tensor([first]), torch.tensor([env]), torch.tensor([3.0]))
    given = torch.tensor([first, second]), torch.tensor([env, other])
    priorities.update(*given, torch.tensor([broken, 5.0]))
    found = leaves(replay, priorities)
    assert found[first, env] == 3.0 and found[second, other] == 5.0
    step, drawn_env, _ = priorities.draw(64, torch.Generator().manual_seed(0))
    assert replay.gather(step, drawn_env).valid.all()
