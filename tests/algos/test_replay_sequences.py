"""Sequences from the replay against a record that keeps everything, over rounds of its ring."""

from typing import Any

import numpy as np
import pytest
import torch
from replay_worlds import CPU, B, T, World, everything, make_spec, slow_window
from tiers import first_quick

from accel_rl.agents import RolloutTensors
from accel_rl.algos.replay import Priorities, SequenceReplay, SequenceSpec

S = 2
"""numbers of a recurrent state"""


def make(
    stack: int = 1, n: int = 2, slots: int = 29, burn_in: int = 3, length: int = 4
) -> SequenceReplay:
    sequences = SequenceSpec(burn_in=burn_in, length=length, state_size=S)
    return SequenceReplay(make_spec(stack, n, slots, sequences=sequences), CPU)


def is_first(world: World, b: int, s: int) -> bool:
    """Whether the policy had forgotten everything before step ``s``."""
    before = world.steps[b][s - 1] if s else None
    return before is None or before["ended"] or before["terminated"] or not before["valid"]


def with_states(world: World, batch: RolloutTensors) -> RolloutTensors:
    """As `RecurrentStates` gives them, of a policy that counts the steps of each episode.

    The state before a step: how many its episode has had, and the environment.
    """
    first = len(world.steps[0]) - T
    states = torch.zeros(T + 1, B, S)
    for b in range(B):
        count = counted(world, b, first)
        states[0, b] = torch.tensor([count, float(b + 1) * (count > 0)])
        for t in range(T):
            states[t + 1, b] = torch.tensor([counted(world, b, first + t) + 1, b + 1])
    return batch._replace(recurrent_state=states)


def counted(world: World, b: int, s: int) -> int:
    count = 0
    while not is_first(world, b, s - count):
        count += 1
    return count


@pytest.mark.parametrize(
    ("n", "burn_in", "length", "stack", "waits"),
    first_quick(
        [
            *((2, 3, 4, 1, False), (1, 0, 5, 3, True), (3, 2, 2, 1, True)),
            *((3, 2, 2, 3, False), (2, 3, 4, 3, True), (1, 0, 5, 1, False)),
        ],
        2,
    ),
)
def test_every_sequence_at_every_cursor_equals_what_was_seen(
    n: int, burn_in: int, length: int, stack: int, waits: bool
) -> None:
    world, replay = World(stack, waits), make(stack, n, 29, burn_in, length)
    interval, R = -(-length // 2), burn_in + length + n
    slots = -(-29 // interval) * interval
    num_valid = num_finals = num_begun = 0
    for collected in range(1, 24):
        replay.append(with_states(world, world.rollout()))
        stored = collected * T
        # Each of them lies between what was overwritten and what is still to come; none is missing.
        starts = [m * interval for m in range(replay.low, replay.high)]
        oldest = max(0, stored - slots + stack - 1)
        assert starts == [s for s in range(oldest, stored - R + 1) if s % interval == 0]
        if not starts:
            assert not replay.can_be_drawn
            continue
        number, env = everything(replay)
        batch = replay.gather(number, env)
        N, C = len(number), batch.is_first.shape[1]
        rows: Any = batch.observation.view(R, C, -1)
        flat = batch.observation.view(R * C, -1)
        assert torch.equal(replay.are_valid(number, env), batch.valid.any(0))
        for j, (m, b) in enumerate(zip(number.tolist(), env.tolist(), strict=True)):
            first, steps = m * interval, world.steps[b]
            count = counted(world, b, first)
            expected = [count, (b + 1) * (count > 0)]
            if steps[first]["valid"]:
                assert batch.state[j].tolist() == expected
            for r in range(R):
                s = first + r
                if steps[s]["valid"] and s >= stack - 1:
                    assert rows[r, j].tolist() == np.ravel(steps[s]["observation"]).tolist()
                assert bool(batch.is_first[r, j]) == (r > 0 and is_first(world, b, s))
                num_begun += bool(batch.is_first[r, j])
            for k in range(length):
                s = first + burn_in + k
                is_valid = steps[s]["valid"] and s >= stack - 1
                assert bool(batch.valid[k, j]) == is_valid
                if not is_valid:
                    continue
                num_valid += 1
                return_, discount, following = slow_window(steps, s, n, gamma=0.9)
                assert int(batch.action[k, j]) == steps[s]["action"]
                assert float(batch.reward[k, j]) == pytest.approx(return_, rel=1e-5, abs=1e-6)
                assert float(batch.discount[k, j]) == pytest.approx(discount)
                if following is None:
                    continue
                behind = int(batch.end[k, j])
                assert flat[behind].tolist() == np.ravel(following).tolist()
                r, column = divmod(behind, C)
                cuts = [i for i in range(n) if "final" in steps[s + i]]
                if not cuts:
                    assert column == j
                    continue
                # In a column of its own, which is the same sequence up to there.
                num_finals += 1
                assert column >= N and r == burn_in + k + cuts[0] + 1
                assert torch.equal(rows[:r, column], rows[:r, j])
                assert torch.equal(batch.is_first[:r, column], batch.is_first[:r, j])
                assert not batch.is_first[r, column]
                assert torch.equal(batch.state[column], batch.state[j])
    assert num_valid > 300 and num_finals > 20 and num_begun > 100


def test_sequences_are_drawn_uniformly_and_by_priority_from_those_that_are_there() -> None:
    world, replay = World(stack=1, waits=False), make()
    priorities = Priorities(replay, alpha=1.0, default=1.0)
    g = torch.Generator().manual_seed(0)
    for _ in range(30):
        replay.append(with_states(world, world.rollout()))
        priorities.follow()
        if replay.can_be_drawn:
            number, env = replay.draw_uniformly(50, g)
            assert replay.low <= int(number.min()) and int(number.max()) < replay.high
            assert 0 <= int(env.min()) and int(env.max()) < B
            number, env, _ = priorities.draw(50, g)
            assert replay.low <= int(number.min()) and int(number.max()) < replay.high
    assert replay.high - replay.low >= 8
    number, env = everything(replay)
    weight = torch.arange(1.0, len(number) + 1)
    priorities.update(number, env, weight)
    drawn, of, probability = priorities.draw(20_000, g)
    index = (drawn - replay.low) * B + of
    torch.testing.assert_close(probability.float(), weight[index] / weight.sum())
    share = torch.bincount(index, minlength=len(number)) / 20_000
    assert (share - weight / weight.sum()).abs().max() < 0.01
    # A sequence whose place is another's by now keeps nothing of its priority.
    before = replay.low
    while replay.low < before + 3:
        replay.append(with_states(world, world.rollout()))
        priorities.follow()
    leaves = priorities.get_state()["leaves"].view(replay.num_slots, B)
    for m in range(replay.high - replay.num_slots, replay.high):
        expected = float(m >= replay.low) if m >= number[-1] + 1 or m < replay.low else None
        if expected is not None:
            assert (leaves[m % replay.num_slots] == expected).all()


def test_a_sequence_without_a_valid_step_has_no_priority() -> None:
    world, replay = World(stack=1, waits=False), make(n=1, burn_in=0, length=2)
    priorities = Priorities(replay, alpha=1.0, default=1.0)
    batch = with_states(world, world.rollout())
    batch.valid[:2, 1] = False
    replay.append(batch)
    priorities.follow()
    number, env, _ = priorities.draw(200, torch.Generator().manual_seed(0))
    assert set(zip(number.tolist(), env.tolist(), strict=True)) == {(0, 0), (0, 2), (0, 3)}


def test_state_gives_the_same_sequences() -> None:
    world, replay, other = World(stack=3, waits=False), *(make(stack=3) for _ in range(2))
    for _ in range(11):
        replay.append(with_states(world, world.rollout()))
    other.set_state(replay.get_state())
    batch = with_states(world, world.rollout())
    found = []
    for each in (replay, other):
        each.append(batch)
        found.append(each.gather(*everything(each)))
    pairs = [pair for pair in zip(*found, strict=True) if pair[0] is not None]
    assert all(torch.equal(*pair) for pair in pairs) and len(pairs) == 8 and world.finals


def test_replay_that_is_too_small_for_a_sequence_says_what_it_needs() -> None:
    message = (
        r"buffer_size is 52; with 4 environments, rollouts of 3 steps, 2-step returns, sequences "
        r"of 3 \+ 4 steps and stacks of 1 frames it must be at least 60"
    )
    with pytest.raises(ValueError, match=message):
        make(slots=13)
    replay, world = make(slots=15), World(stack=1, waits=False)
    for _ in range(40):  # once there are as many steps, there is always something to draw
        replay.append(with_states(world, world.rollout()))
        assert replay.can_be_drawn == (replay.num_stored >= 9)
