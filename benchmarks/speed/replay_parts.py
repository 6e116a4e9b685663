"""One replay memory of Atari steps, filled and then sampled from or added to: ours or another's.

Sampling: minibatches of 512 transitions, stacks of 4 frames as observation and next observation,
and for a prioritised memory the write-back of 512 new priorities. Adding: steps that simulators
have just taken, whatever the memory wants done with them. The frames are random bytes.

Runs in any interpreter that has the peer; all but ours get along without accel_rl. Each is set up
in the way that its documentation has for Atari and that takes the least memory:

* Stable-Baselines3: `ReplayBuffer` with optimize_memory_usage, which keeps one stack a step
  (`NStepReplayBuffer` for more steps). It has no priorities: it samples uniformly, writes none.
* cpprb: `PrioritizedReplayBuffer` with stack_compress and next_of, one frame a step (two with
  n-step returns, which do not go with next_of); steps of one environment, since a compressed stack
  must follow on the one before.
"""

from __future__ import annotations

import importlib
import resource
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness.children import Advance, read_spec, serve
from benchmarks.harness.usage import wait_for

MODULES = {
    "accel_rl": "accel_rl.algos.replay",
    "sb3": "stable_baselines3.common.buffers",
    "cpprb": "cpprb",
}
STACK, ALPHA, BETA, GAMMA = 4, 0.5, 0.4, 0.99


class Memory(NamedTuple):
    """``sample`` does one minibatch with its write-back; ``add`` stores some steps, how many it
    returns."""

    sample: Callable[[], object]
    add: Callable[[], int]


def main() -> None:
    """Measures the memory that the specification names."""
    spec = read_spec()
    make = {"accel_rl": make_ours, "sb3": make_sb3, "cpprb": make_cpprb}
    importlib.import_module(MODULES[spec["part"]])  # not to be counted
    before = _used_bytes(spec)
    memory = make[spec["part"]](spec)
    stored = 0
    while stored < spec["size"] + 8 * spec["num_envs"]:  # over the end, so that all are in use
        stored += memory.add()
    used = (_used_bytes(spec) - before) / spec["size"]
    keys = ("size", "num_envs", "batch_size", "n_step", "malloc", "device")
    said = {key: spec[key] for key in keys} | {"bytes_a_transition": round(used)}
    serve(memory.add if spec["operation"] == "add" else _sampling(memory, spec), said)


def _sampling(memory: Memory, spec: dict[str, Any]) -> Advance:
    def advance() -> int:
        memory.sample()
        return int(spec["batch_size"])

    return advance


def _used_bytes(spec: dict[str, Any]) -> int:
    """Bytes of memory that this process uses on the device of ``spec``."""
    if spec["device"] == "cuda":
        import torch

        return torch.cuda.memory_allocated()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def make_ours(spec: dict[str, Any]) -> Memory:
    """`accel_rl.algos.replay`, as the Q-learners use it."""
    import torch

    from accel_rl.agents import RolloutTensors
    from accel_rl.algos.q_learning import importance_weights
    from accel_rl.algos.replay import Priorities, Replay, ReplaySpec
    from accel_rl.spaces import Leaf, discrete

    torch.set_num_threads(spec["torch_threads"])
    device = torch.device(spec["device"])
    T, B, batch = spec["horizon"], spec["num_envs"], spec["batch_size"]
    shape = (STACK, *spec["image"])
    described = ReplaySpec(
        size=spec["size"],
        num_envs=B,
        horizon=T,
        observation=Leaf(shape, np.uint8),
        action=discrete(4),
        frame_stack=STACK,
        n_step=spec["n_step"],
        gamma=GAMMA,
    )
    replay = Replay(described, device)
    priorities = Priorities(replay, ALPHA, 1.0)
    generator = torch.Generator(device).manual_seed(spec["seed"])
    observation = torch.empty(T + 1, B, *shape, dtype=torch.uint8, device=device)
    observation.random_(256, generator=generator)
    observation[0] = observation[T]  # every rollout begins where the one before ended
    none = torch.zeros(T, B, dtype=torch.bool, device=device)
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    rollout = RolloutTensors(
        observation=observation,
        action=torch.zeros(T, B, dtype=torch.int64, device=device),
        reward=torch.zeros(T, B, device=device),
        terminated=none,
        truncated=none,
        valid=~none,
        final_observation=observation[:0, 0],
        final_step=nothing,
        final_env=nothing,
    )
    if device.type == "cuda":  # as the action server tells it, so that nobody waits
        rollout = rollout._replace(host=rollout.flags._replace(follows=True))
    errors = torch.rand(batch, generator=generator, device=device)

    def sample() -> object:
        step, env, probability = priorities.draw(batch, generator)
        weight = importance_weights(probability, probability.min(), BETA)
        transitions = replay.gather(step, env)
        priorities.update(step, env, errors)
        wait_for(device)
        return weight, transitions

    def add() -> int:
        replay.append(rollout)
        priorities.follow()
        wait_for(device)
        return T * B

    return Memory(sample, add)


def make_sb3(spec: dict[str, Any]) -> Memory:
    """Stable-Baselines3's, without priorities."""
    import torch
    from gymnasium import spaces
    from stable_baselines3.common import buffers

    torch.set_num_threads(spec["torch_threads"])
    B = spec["num_envs"]
    shape = (STACK, *spec["image"])
    settings = {"device": "cpu", "n_envs": B, "handle_timeout_termination": False}
    arguments = spec["size"], spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(4)
    if spec["n_step"] == 1:
        buffer = buffers.ReplayBuffer(*arguments, optimize_memory_usage=True, **settings)
    else:  # it cannot save memory in that way
        more = {"n_steps": spec["n_step"], "gamma": GAMMA}
        buffer = buffers.NStepReplayBuffer(*arguments, **settings, **more)
    rng = np.random.default_rng(spec["seed"])
    observation = rng.integers(0, 256, (B, *shape), dtype=np.uint8)
    action, reward, done = np.zeros((B, 1), np.int64), np.zeros(B), np.zeros(B, np.bool_)
    infos: list[dict[str, Any]] = [{} for _ in range(B)]

    def add() -> int:
        buffer.add(observation, observation, action, reward, done, infos)
        return B

    return Memory(lambda: buffer.sample(spec["batch_size"]), add)


def make_cpprb(spec: dict[str, Any]) -> Memory:
    """cpprb's, with priorities."""
    from cpprb import PrioritizedReplayBuffer

    image, batch = tuple(spec["image"]), spec["batch_size"]
    stacks_of = {"obs": {"shape": (*image, STACK), "dtype": np.uint8}}
    fields = stacks_of | {"act": {"dtype": np.int64}, "rew": {}, "done": {}}
    more: dict[str, Any] = {"next_of": "obs", "stack_compress": "obs"}
    if spec["n_step"] > 1:  # its n-step returns need next observations of their own
        fields["next_obs"] = stacks_of["obs"]
        returns = {"size": spec["n_step"], "rew": "rew", "gamma": GAMMA, "next": "next_obs"}
        more = {"stack_compress": ("obs", "next_obs"), "Nstep": returns}
    buffer = PrioritizedReplayBuffer(spec["size"], fields, alpha=ALPHA, **more)
    rng = np.random.default_rng(spec["seed"])
    frames = rng.integers(0, 256, (*image, 64 + STACK + 1), dtype=np.uint8)
    stacks = [np.ascontiguousarray(frames[..., i : i + STACK]) for i in range(65)]
    errors = rng.random(batch)

    def sample() -> object:
        transitions = buffer.sample(batch, beta=BETA)
        buffer.update_priorities(transitions["indexes"], errors)
        return transitions

    def add() -> int:
        for here, there in pairwise(stacks):
            buffer.add(obs=here, act=0, rew=0.0, next_obs=there, done=0.0)
        buffer.on_episode_end()
        return len(stacks) - 1

    return Memory(sample, add)


if __name__ == "__main__":
    main()
