"""Replay of mappings on a GPU, and Q-learning from masked observations there."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from made_rollouts import learner_of, made_rollout
from replay_worlds import everything

from accel_rl.agents import RolloutTensors
from accel_rl.algos import DQN, DQNConfig, LearnerSpec, NetworkSpec
from accel_rl.algos.replay import Replay, ReplaySpec
from accel_rl.envs import EnvSpec
from accel_rl.parallel import Local
from accel_rl.spaces import Leaf, discrete

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
T, B = 4, 6
ENV = EnvSpec(
    name="masked toy",
    observation={
        "observation": Leaf((3,), np.dtype(np.float32)),
        "action_mask": Leaf((4,), np.dtype(np.int8)),
    },
    action=discrete(4),
)


def make(device: torch.device) -> tuple[DQN, Local]:
    config = DQNConfig(
        batch_size=8,
        learning_starts=48,
        buffer_size=100,
        target_update_interval=96,
        prioritized=True,
    )
    torch.manual_seed(0)
    agent = config.make_agent(NetworkSpec("auto", ENV, device))
    learner = learner_of(config, agent, LearnerSpec(ENV, B, T, 0))
    return learner, learner.sync


def batches(num: int) -> Iterator[RolloutTensors]:
    """Random rollouts with truncations, each after the one before."""
    g = torch.Generator().manual_seed(0)

    def observations(*shape: int) -> dict[str, torch.Tensor]:
        mask = (torch.rand(*shape, 4, generator=g) < 0.5).to(torch.int8)
        mask[..., 0] = 1
        return {"observation": torch.randn(*shape, 3, generator=g), "action_mask": mask}

    last: Any = None
    for _ in range(num):
        observation = observations(T + 1, B)
        for name, rows in observation.items():
            if last is not None:
                rows[0] = last[name]
        last = {name: rows[T] for name, rows in observation.items()}
        truncated = torch.zeros(T, B, dtype=torch.bool)
        truncated[2, 1] = True
        yield made_rollout(
            observation,
            torch.randint(0, 4, (T, B), generator=g),
            torch.randn(T, B, generator=g),
            truncated=truncated,
            final_observation=observations(1),
            final_step=torch.tensor([2]),
            final_env=torch.tensor([1]),
        )


def test_masked_dicts_are_kept_on_the_gpu_as_on_the_host() -> None:
    (learner, _), (host, _) = make(CUDA), make(CPU)
    for batch in batches(12):
        metrics = learner.update(batch.map(lambda each: each.to(CUDA)), 0.0)
        assert metrics.keys() == host.update(batch, 0.0).keys()
    assert all(torch.isfinite(each) for each in metrics.values())
    at = everything(host.replay)
    kept = host.replay.gather(*at)
    found = learner.replay.gather(*(each.to(learner.replay.device) for each in at))
    for ours, theirs in zip(found, kept, strict=True):
        torch.testing.assert_close(ours, theirs, check_device=False)


def test_frames_behind_the_first_two_gigabytes_are_kept_and_found() -> None:
    """Where a byte's number is above what 32 bits hold; an emulated GPU has a smaller replay."""
    is_large = torch.version.cuda is not None and torch.cuda.mem_get_info()[0] > 12e9
    T, B = 4, 64
    spec = ReplaySpec(
        size=1_000_000 if is_large else 6400,
        num_envs=B,
        horizon=T,
        observation=Leaf((1, 84, 84), np.dtype(np.uint8)),
        action=discrete(4),
    )
    replay = Replay(spec, CUDA)
    replay.num_stored = first = spec.num_slots - 3 * T  # as if these had come before
    g = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 256, (4 * T + 1, B, 1, 84, 84), dtype=torch.uint8, generator=g)
    for t in range(0, 4 * T, T):  # the last ones are at the beginning again
        nothing = torch.zeros(T, B, dtype=torch.int64)
        batch = made_rollout(frames[t : t + T + 1], nothing, nothing.float())
        host = batch.flags._replace(follows=True)
        replay.append(batch.map(lambda field: field.to(CUDA))._replace(host=host))
    step = torch.arange(4 * T - 1).repeat_interleave(B)
    env = torch.arange(B).repeat(4 * T - 1)
    found = replay.gather((first + step).to(CUDA), env.to(CUDA))
    assert torch.equal(found.observation.cpu(), frames[step, env])
    assert torch.equal(found.next_observation.cpu(), frames[step + 1, env])
