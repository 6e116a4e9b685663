"""The replay memory against a record that keeps everything, over several rounds of its ring."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from replay_worlds import CPU, B, T, World, everything, make, slow_window

from accel_rl.algos.replay import Priorities, Replay, ReplaySpec
from accel_rl.algos.replay.spec import check_free_memory, replay_device
from accel_rl.spaces import Leaf, discrete


@pytest.mark.parametrize(
    ("slots", "stack", "n", "waits"),  # 12 is a multiple of the horizon
    [(12, 1, 1, False), (17, 3, 3, False), (17, 3, 1, True), (12, 1, 3, True), (12, 3, 3, False)],
)
def test_every_transition_at_every_cursor_equals_what_was_seen(
    slots: int, stack: int, n: int, waits: bool
) -> None:
    world, replay = World(stack, waits), make(stack, n, slots)
    num_valid = num_finals = 0
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
            assert batch.valid[i].item() == (steps[s]["valid"] and s >= stack - 1)
            if not batch.valid[i]:
                continue
            return_, discount, following = slow_window(steps, s, n, gamma=0.9)
            num_valid += 1
            num_finals += any("final" in row for row in steps[s : s + n])
            shape = batch.observation[i].shape
            seen = torch.tensor(steps[s]["observation"]).view(shape)
            assert torch.equal(batch.observation[i].long(), seen)
            assert batch.action[i].item() == steps[s]["action"]
            assert batch.reward[i].item() == pytest.approx(return_, rel=1e-5, abs=1e-6)
            assert batch.discount[i].item() == pytest.approx(discount)
            if following is not None:
                seen = torch.tensor(following).view(shape)
                assert torch.equal(batch.next_observation[i].long(), seen)
    assert num_valid > 200 and num_finals > 10


@pytest.mark.parametrize("stack", [1, 3])
def test_what_the_host_knows_of_rollouts_is_taken_instead_of_tensors(stack: int) -> None:
    """With flags that are wrong the tensors would be: so nobody asks a device for them."""
    world, replay, other = World(stack, waits=False), make(stack), make(stack)
    for i in range(12):
        batch = world.rollout()
        replay.append(batch)
        wrong = {name: ~getattr(batch, name) for name in ("terminated", "truncated", "valid")}
        host = batch.flags._replace(follows=i > 0)
        at = {name: getattr(batch, name) + 1 for name in ("final_step", "final_env")}
        other.append(batch._replace(host=host, **wrong, **at))
    assert replay.has_finals
    state, found = replay.get_state(), other.get_state()
    assert state.keys() == found.keys()
    torch.testing.assert_close(found, state, rtol=0, atol=0)


def test_rollouts_that_follow_are_not_compared_and_others_are() -> None:
    world, replay = World(stack=1, waits=False), make(stack=1)
    first, second = world.rollout(), world.rollout()
    changed = second.observation.clone()
    changed[0, 1] += 1
    lost = []
    for follows in (True, False):
        replay = make(stack=1)
        replay.append(first._replace(truncated=torch.zeros(T, B, dtype=torch.bool)))
        host = second.flags._replace(follows=follows)
        replay.append(second._replace(observation=changed, host=host))
        lost.append(replay.get_state()["fields"]["truncated"][T - 1].tolist())
    assert lost == [[False] * B, [False, True, False, False]]


def test_final_observation_that_was_overwritten_leaves_its_steps_out(monkeypatch) -> None:
    monkeypatch.setattr(ReplaySpec, "num_finals", 3)
    world, replay = World(stack=3, waits=False), make(stack=3, n=2, slots=40)
    for _ in range(12):
        replay.append(world.rollout())
    kept = world.finals[-3:]
    lost = {(b, s - k) for b, s in world.finals[:-3] for k in range(2)}
    batch = replay.gather(*everything(replay))
    num_lost = 0
    for i, (s, b) in enumerate(zip(batch.step.tolist(), batch.env.tolist(), strict=True)):
        is_lost = ((b, s) in lost and not world.steps[b][s]["ended"]) or (b, s) in world.finals[:-3]
        is_lost &= not world.steps[b][s]["terminated"]  # a lost life or an end comes first
        num_lost += is_lost
        assert batch.valid[i].item() == (s >= 2 and not is_lost), (b, s)
        if (b, s) in kept:
            assert batch.next_observation[i].tolist() == world.steps[b][s]["final"]
    assert num_lost > 5 and any(s < replay.high for _, s in kept)


def test_no_final_observation_is_taken_behind_a_step_that_was_never_taken() -> None:
    """A worker that was lost before it stepped: its row is truncated, and not valid."""
    world, replay = World(stack=1, waits=False), make(stack=1, n=2, slots=20)
    batch = world.rollout()
    nothing = torch.zeros(T, B, dtype=torch.bool)
    lost = nothing.clone()
    lost[1, 2] = True
    at = torch.tensor([1]), torch.tensor([2])
    batch = batch._replace(
        terminated=nothing,
        truncated=lost,
        valid=~lost,
        final_observation=batch.observation[1, 2].unsqueeze(0),
        final_step=at[0],
        final_env=at[1],
    )
    replay.append(batch)
    valid = replay.gather(*everything(replay)).valid.view(-1, B)
    expected = torch.ones(T - 2, B, dtype=torch.bool)
    expected[0, 2] = False
    assert torch.equal(valid, expected)


def test_state_keeps_final_observations() -> None:
    world, replay, other = World(stack=3, waits=False), *(make(slots=40) for _ in range(2))
    for _ in range(8):
        replay.append(world.rollout())
    other.set_state(replay.get_state())
    batch = world.rollout()
    for each in (replay, other):
        each.append(batch)
    drawn = (each.gather(*everything(each)) for each in (replay, other))
    assert all(torch.equal(*fields) for fields in zip(*drawn, strict=True)) and world.finals


@pytest.mark.parametrize("stack", [255, 256])
def test_long_stacks_are_those_seen_also_after_more_steps_than_a_byte_counts(stack: int) -> None:
    """One episode ends after step 299; frames are numbered from 1 within each."""
    replay = make(stack, slots=700)
    nothing = torch.zeros(T, B, dtype=torch.bool)

    def seen(s: int) -> torch.Tensor:
        number = s + 1 if s < 300 else s - 299
        return torch.arange(number - stack + 1, number + 1).clamp(min=0).int()

    for first in range(0, 600, T):
        stacks = torch.stack([seen(s) for s in range(first, first + T + 1)])  # [T + 1, stack]
        batch = World(stack=1, waits=False).rollout()
        observation = stacks[:, None, :, None].expand(-1, B, -1, 2)
        terminated = nothing | (torch.arange(first, first + T) == 299)[:, None]
        replay.append(
            batch._replace(observation=observation, terminated=terminated, truncated=nothing)
        )
    for s in range(stack, 599):
        found = replay.gather(torch.tensor([s]), torch.tensor([0])).observation[0, :, 0]
        assert torch.equal(found, seen(s)), s


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


ATARI: dict[str, Any] = {
    "num_envs": 16,
    "horizon": 4,
    "observation": Leaf((4, 104, 80), np.dtype(np.uint8)),
    "action": discrete(4),
    "frame_stack": 4,
}


@pytest.mark.parametrize(
    ("size", "num_learners", "message"),
    [
        (128, 1, r"buffer_size is 128; .* at least 144"),
        (10**9, 1, r"buffer_size=1000000000 takes 8344.* GB, and cpu has .* free"),
        (10**9, 3, r"each of 3 learners' parts of the replay takes 8344.* use buffer_size="),
    ],
    ids=["short", "machine", "parts"],
)
def test_replay_of_a_size_that_cannot_be_is_refused_before_it_is_taken(
    size: int, num_learners: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Replay(ReplaySpec(size=size, **ATARI), CPU, num_learners)


def test_memory_that_another_learner_has_taken_meanwhile_is_the_same_message(monkeypatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(ValueError, match=r"buffer_size=\d+ takes .* GB free for it; use buffer"):
        make(stack=3, n=1, slots=20)


def test_a_replay_leaves_memory_of_a_gpu_for_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ReplaySpec(size=100_000, batch_size=32, **ATARI)
    free = round(spec.nbytes / 0.9 + 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 2 * free))
    gpu = torch.device("cuda")
    assert replay_device(spec, gpu) == gpu
    larger = dataclasses.replace(spec, batch_size=2048)
    assert replay_device(larger, gpu) == torch.device("cpu")
    with pytest.raises(ValueError, match="use buffer_size="):
        check_free_memory(larger, gpu)


def test_a_million_atari_transitions_take_8_4_gigabytes() -> None:
    assert ReplaySpec(size=10**6, **ATARI).nbytes == pytest.approx(8.41e9, rel=1e-3)


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
            following = world.steps[2][s].get("final", world.steps[2][s + 1]["observation"])
            assert batch.next_observation[i].tolist() == following


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32])
def test_first_steps_of_a_replacement_are_not_valid_whatever_the_dtype(dtype: torch.dtype) -> None:
    leaf = Leaf((3, 2), np.dtype(str(dtype).removeprefix("torch.")))
    spec = dataclasses.replace(make(stack=3, slots=20).spec, observation=leaf)
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


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_replacements_are_seen_in_scalar_observations_and_nan_is_none(dtype: torch.dtype) -> None:
    spec = make(stack=1, slots=20).spec
    leaf = Leaf((), np.dtype(str(dtype).removeprefix("torch.")))
    spec = dataclasses.replace(spec, observation=leaf)
    replay, nothing = Replay(spec, torch.device("cpu")), torch.zeros(T, B, dtype=torch.bool)
    observation = torch.ones(T + 1, B, dtype=dtype)
    if dtype.is_floating_point:
        observation[:, 0] = torch.nan
    batch = World(stack=1, waits=False).rollout()
    batch = batch._replace(observation=observation, terminated=nothing, truncated=nothing)
    replay.append(batch)
    changed = observation.clone()
    changed[0, 1] = 0
    replay.append(batch._replace(observation=changed))
    replay.append(batch)
    valid = replay.gather(*everything(replay)).valid.view(-1, B)
    assert torch.nonzero(~valid).tolist() == [[T - 1, 1]]
