"""The replay memory against a record that keeps everything, over several rounds of its ring."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from accel_rl.agents import RolloutTensors
from accel_rl.algos.replay import Priorities, Replay, ReplaySpec

CPU = torch.device("cpu")
T, B = 3, 4


class World:
    """Random episodes whose frames are numbered, with all that a learner was ever shown of them.

    A step may end the game (terminated), cut it off (truncated), do both, or lose a life. Stacks
    are blank before an episode's first frame and after a lost life. With ``waits`` the rest of a
    rollout after an episode's end is not valid.
    """

    def __init__(self, stack: int, waits: bool, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.stack, self.waits = stack, waits
        self.number = 1000
        self.history: list[list[int]] = [[] for _ in range(B)]
        for b in range(B):
            for _ in range(stack):  # the first rollout begins in the middle of an episode
                self._push(b)
        self.steps: list[list[dict[str, Any]]] = [[] for _ in range(B)]

    def rollout(self) -> RolloutTensors:
        rows = [self._step(b, t) for t in range(T) for b in range(B)]
        observation = [row["observation"] for row in rows] + [self._observe(b) for b in range(B)]

        def field(name: str, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([row[name] for row in rows], dtype=dtype).view(T, B)

        if self.waits:
            for b in range(B):
                if not rows[(T - 1) * B + b]["valid"] or rows[(T - 1) * B + b]["ended"]:
                    self._restart(b)
        shape = (T + 1, B, self.stack, 2) if self.stack > 1 else (T + 1, B, 2)
        return RolloutTensors(
            observation=torch.tensor(observation, dtype=torch.int32).reshape(shape),
            action=field("action", torch.int64),
            reward=field("reward", torch.float32),
            terminated=field("terminated", torch.bool),
            truncated=field("truncated", torch.bool),
            valid=field("valid", torch.bool),
            final_observation=torch.empty(0),
            final_step=torch.empty(0, dtype=torch.int64),
            final_env=torch.empty(0, dtype=torch.int64),
        )

    def _step(self, b: int, t: int) -> dict[str, Any]:
        record = self.steps[b]
        if self.waits and t > 0 and (record[-1]["ended"] or not record[-1]["valid"]):
            row = {"observation": [[0, 0]] * self.stack, "action": 0, "reward": 0.0}
            row |= dict.fromkeys(("terminated", "truncated", "ended", "valid"), False)
        else:
            kind = self.rng.choice(
                ["on", "over", "cut", "both", "life"], p=[0.6, 0.1, 0.1, 0.1, 0.1]
            )
            row = {
                "observation": self._observe(b),
                "action": int(self.rng.integers(5)),
                "reward": float(self.rng.normal()),
                "terminated": kind in ("over", "both", "life"),
                "truncated": kind in ("cut", "both"),
                "ended": kind in ("over", "both", "cut"),
                "valid": True,
            }
            if row["ended"] and self.waits:
                self.history[b] = []
            elif kind != "on":
                self._restart(b)
            else:
                self._push(b)
        record.append(row)
        return row

    def _restart(self, b: int) -> None:
        self.history[b] = []
        self._push(b)

    def _push(self, b: int) -> None:
        self.number += 1
        self.history[b] = [*self.history[b], self.number][-self.stack :]

    def _observe(self, b: int) -> list[list[int]]:
        blanks = [0] * (self.stack - len(self.history[b]))
        return [[number, -number] for number in blanks + self.history[b]]


def slow_window(steps: list[dict[str, Any]], s: int, n: int, gamma: float) -> tuple[float, float]:
    """Return and discount; raises StopIteration where a truncation is crossed."""
    total = 0.0
    for k in range(n):
        row = steps[s + k]
        total += gamma**k * row["reward"]
        if row["terminated"]:
            return total, 0.0
        if row["truncated"]:
            raise StopIteration
    return total, gamma**n


def make(stack: int = 3, n: int = 1, slots: int = 17, **options: Any) -> Replay:
    spec = ReplaySpec(
        size=slots * B,
        num_envs=B,
        horizon=T,
        observation_shape=(stack, 2) if stack > 1 else (2,),
        observation_dtype=torch.int32,
        frame_stack=stack,
        n_step=n,
        gamma=0.9,
        **options,
    )
    return Replay(spec, CPU)


def everything(replay: Replay) -> tuple[torch.Tensor, torch.Tensor]:
    step = torch.arange(replay.low, replay.high).repeat_interleave(B)
    return step, torch.arange(B).repeat(replay.high - replay.low)


@pytest.mark.parametrize("waits", [False, True], ids=["immediate", "wait"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("slots", [12, 17], ids=["multiple", "odd"])
def test_every_transition_at_every_cursor_equals_what_was_seen(
    slots: int, stack: int, n: int, waits: bool
) -> None:
    world, replay = World(stack, waits), make(stack, n, slots)
    num_valid = num_cut = 0
    for collected in range(1, 20):
        replay.append(world.rollout())
        stored = collected * T
        assert (replay.low, replay.high) == (
            max(0, stored - slots + stack - 1),
            max(0, stored - n),
        )
        batch = replay.gather(*everything(replay))
        assert len(batch.valid) == (replay.high - replay.low) * B
        for i, (s, b) in enumerate(zip(batch.step.tolist(), batch.env.tolist(), strict=True)):
            steps = world.steps[b]
            try:
                return_, discount = slow_window(steps, s, n, gamma=0.9)
                expected = steps[s]["valid"] and s >= stack - 1
            except StopIteration:
                expected = False
                num_cut += 1
            assert batch.valid[i].item() == expected
            if not expected:
                continue
            num_valid += 1
            shape = batch.observation[i].shape
            seen = torch.tensor(steps[s]["observation"]).view(shape)
            assert torch.equal(batch.observation[i].long(), seen)
            assert batch.action[i].item() == steps[s]["action"]
            assert batch.reward[i].item() == pytest.approx(return_, rel=1e-5, abs=1e-6)
            assert batch.discount[i].item() == pytest.approx(discount)
            if discount and s + n < len(steps):
                seen = torch.tensor(steps[s + n]["observation"]).view(shape)
                assert torch.equal(batch.next_observation[i].long(), seen)
    assert num_valid > 200 and num_cut > 10


def test_draws_where_no_step_is_valid_are_finite_and_not_valid() -> None:
    world, replay = World(stack=3, waits=False), make(stack=3)
    priorities = Priorities(replay, alpha=0.5, default=1.0)
    batch = world.rollout()
    replay.append(batch._replace(valid=torch.zeros_like(batch.valid)))
    priorities.follow()
    step, env, probability = priorities.draw(8, torch.Generator().manual_seed(0))
    assert probability.tolist() == [1.0] * 8
    assert not replay.gather(step, env).valid.any()


def test_uniform_draws_are_even_over_steps_and_environments() -> None:
    world, replay = World(stack=1, waits=False), make(stack=1, slots=12)
    for _ in range(9):
        replay.append(world.rollout())
    num = 200_000
    step, env = replay.draw_uniformly(num, torch.Generator().manual_seed(0))
    cells = (replay.high - replay.low) * B
    assert cells == (12 - 1) * B
    counts = torch.bincount((step - replay.low) * B + env, minlength=cells).double()
    assert len(counts) == cells
    deviation = (counts - num / cells).abs().max() / (num / cells) ** 0.5
    assert deviation < 4  # standard errors; none is starved, the last environment least of all


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


def filled(default: float = 1.0, alpha: float = 1.0) -> tuple[World, Replay, Priorities]:
    world, replay = World(stack=1, waits=False), make(stack=1)
    priorities = Priorities(replay, alpha, default)
    for _ in range(8):
        replay.append(world.rollout())
        priorities.follow()
    return world, replay, priorities


def test_draws_follow_priorities() -> None:
    _, replay, priorities = filled()
    step, env = (torch.tensor(each) for each in zip(*leaves(replay, priorities), strict=True))
    wanted = torch.rand(len(step), generator=torch.Generator().manual_seed(1)).double() + 0.1
    priorities.update(step, env, wanted)
    num = 100_000
    drawn, drawn_env, probability = priorities.draw(num, torch.Generator().manual_seed(0))
    cell = {(s, b): i for i, (s, b) in enumerate(zip(step.tolist(), env.tolist(), strict=True))}
    index = [cell[s, b] for s, b in zip(drawn.tolist(), drawn_env.tolist(), strict=True)]
    share = wanted / wanted.sum()
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
    _, replay, priorities = filled()
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


def test_ring_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match=r"replay_size is 24; .* at least 28"):
        make(stack=3, n=1, slots=6)


def test_memory_beyond_the_machine_is_refused_before_it_is_taken() -> None:
    spec = ReplaySpec(
        size=10**9,
        num_envs=16,
        horizon=4,
        observation_shape=(4, 104, 80),
        observation_dtype=torch.uint8,
        frame_stack=4,
    )
    with pytest.raises(
        ValueError, match=r"replay_size=1000000000 takes 8336.* GB, and cpu has .* free"
    ):
        Replay(spec, CPU)
    with pytest.raises(
        ValueError, match=r"each of 3 learners' parts of the replay takes 8336.* use replay_size="
    ):
        Replay(spec, CPU, num_learners=3)


def test_memory_that_another_learner_has_taken_meanwhile_is_the_same_message(monkeypatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(ValueError, match=r"replay_size=\d+ takes .* GB free for it; use replay"):
        make(stack=3, n=1, slots=20)


def test_a_million_atari_transitions_take_8_3_gigabytes() -> None:
    spec = ReplaySpec(
        size=10**6,
        num_envs=16,
        horizon=4,
        observation_shape=(4, 104, 80),
        observation_dtype=torch.uint8,
        frame_stack=4,
    )
    assert spec.nbytes == pytest.approx(8.34e9, rel=1e-3)


def test_drawing_and_gathering_give_shapes_without_data() -> None:
    """On the meta device nothing can be asked of the values: so nothing synchronises either."""
    spec = ReplaySpec(
        size=400,
        num_envs=B,
        horizon=T,
        observation_shape=(4, 6, 5),
        observation_dtype=torch.uint8,
        frame_stack=4,
        n_step=3,
    )
    meta = torch.device("meta")
    replay = Replay(spec, meta)
    replay.num_stored = 60
    step = torch.empty(32, dtype=torch.int64, device=meta)
    batch = replay.gather(step, step)
    assert batch.observation.shape == batch.next_observation.shape == (32, 4, 6, 5)
    assert batch.reward.shape == batch.discount.shape == batch.valid.shape == (32,)


@pytest.mark.parametrize("num_random_steps", [0, 1, 5])
def test_environment_that_was_replaced_between_rollouts_makes_no_transition_across(
    num_random_steps: int,
) -> None:
    world, replay = World(stack=3, waits=False), make(stack=3, slots=40)
    priorities = Priorities(replay, alpha=1.0, default=1.0)
    for _ in range(4):
        replay.append(world.rollout())
        priorities.follow()
    last = replay.num_stored - 1
    world.steps[2][last]["truncated"] |= not world.steps[2][last]["terminated"]
    world._restart(2)  # as a successor would, unknown to the rollouts
    for _ in range(num_random_steps):
        world._push(2)
    for _ in range(3):
        replay.append(world.rollout())
        priorities.follow()
    step, env = everything(replay)
    batch = replay.gather(step, env)
    crossing = (batch.step == last) & (batch.env == 2)
    assert not batch.valid[crossing].any() or world.steps[2][last]["terminated"]
    for i in torch.nonzero(batch.valid & (batch.env == 2)).flatten().tolist():
        s = batch.step[i].item()
        assert batch.observation[i].tolist() == world.steps[2][s]["observation"]
        if batch.discount[i]:
            assert batch.next_observation[i].tolist() == world.steps[2][s + 1]["observation"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32])
def test_first_steps_of_a_replacement_are_not_valid_whatever_the_dtype(dtype: torch.dtype) -> None:
    spec = dataclasses.replace(make(stack=3, slots=20).spec, observation_dtype=dtype)
    replay, nothing = Replay(spec, torch.device("cpu")), torch.zeros(T, B, dtype=torch.bool)
    batch = World(stack=3, waits=False).rollout()._replace(terminated=nothing, truncated=nothing)
    batch = batch._replace(observation=torch.ones_like(batch.observation, dtype=dtype))
    replay.append(batch)
    changed = batch.observation.clone()
    changed[0, 1, -1] = 0
    replay.append(batch._replace(observation=changed))
    replay.append(batch)
    valid = replay.gather(*everything(replay)).valid.view(-1, B).T.tolist()
    lost = [T - 1, T, T + 1]  # the last before, whose next observation is another's, and two more
    steps = range(replay.low, replay.high)
    assert valid[1] == [step >= 2 and step not in lost for step in steps]
    assert valid[0] == valid[2] == [step >= 2 for step in steps]
