"""Other vector environments, measured as ours are: without a network, and with the same one in the
loop.

Runs in any interpreter that has the peer (and torch, for the network). Each peer is set up as near
to our protocol as it goes, and where it cannot follow in the way that is faster for it:

* EnvPool: episodic lives, FIRE on reset, and bilinear resizing where ours takes the 2x2 mean.
* ale_py: lost lives are reported, as ours are, without ending the game; its own episodic lives
  reset the emulator.
* Gymnasium: one process for each environment, shared memory, the wrappers that Gymnasium has for
  this; a lost life does not reset the emulator.

None of them can crop the two bottom rows; they shrink all 210. ``asynchronous``: batches of half
the environments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.children import Advance, read_spec, serve

PACKAGES = {"envpool": "envpool", "ale": "ale_py", "gymnasium": "gymnasium"}
MAX_STEPS = 27_000


class Peer(NamedTuple):
    """``advance(actions [n])`` returns the observations ``[n, 4, H, W]`` that come next."""

    first: NDArray[np.uint8]
    advance: Callable[[NDArray[np.int64]], NDArray[np.uint8]]
    num_actions: int
    settings: dict[str, Any]


def main() -> None:
    """Measures the peer that the specification names."""
    spec = read_spec()
    make = {"envpool": make_envpool, "ale": make_ale, "gymnasium": make_gymnasium}
    peer = make[spec["peer"]](spec)  # before torch is there, since Gymnasium's workers are forks
    settings = dict(peer.settings)
    if spec["network"]:
        from benchmarks.harness.network import make_act

        act, more = make_act(spec | {"num_actions": peer.num_actions})
        settings |= more
    else:
        rng = np.random.default_rng(spec["seed"])

        def act(observation: NDArray[np.uint8]) -> NDArray[np.int64]:
            return rng.integers(peer.num_actions, size=len(observation))

    serve(play(peer, act), settings)


def play(peer: Peer, act: Callable[[NDArray[np.uint8]], NDArray[np.int64]]) -> Advance:
    """One batch after another: ``act`` on what came last, then the next."""
    observation = peer.first

    def advance() -> int:
        nonlocal observation
        observation = peer.advance(act(observation))
        return len(observation)

    return advance


def make_envpool(spec: dict[str, Any]) -> Peer:
    """EnvPool's Atari environments, in C++ threads."""
    import envpool

    num_envs = spec["num_envs"]
    batch = num_envs // 2 if spec["asynchronous"] else num_envs
    name = "".join(part.capitalize() for part in spec["game"].split("_")) + "-v5"
    height, width = spec["observation_shape"][1:]
    settings = {
        "num_envs": num_envs,
        "batch_size": batch,
        "num_threads": spec["env_threads"],
        "thread_affinity_offset": spec["affinity_offset"],
        "img_height": height,
        "img_width": width,
        "use_inter_area_resize": (height, width) != (104, 80),
        "episodic_life": True,
        "reward_clip": True,
        "max_episode_steps": MAX_STEPS,
    }
    pool = envpool.make(name, env_type="gymnasium", seed=spec["seed"], **settings)
    pool.async_reset()
    observation, _, _, _, info = pool.recv()
    env_ids = info["env_id"]

    def advance(actions: NDArray[np.int64]) -> NDArray[np.uint8]:
        nonlocal env_ids
        pool.send(actions.astype(np.int32), env_ids)
        observation, _, _, _, info = pool.recv()
        env_ids = info["env_id"]
        return observation

    return Peer(observation, advance, int(pool.action_space.n), settings)


def make_ale(spec: dict[str, Any]) -> Peer:
    """The vector environment that ale_py has, in C++ threads."""
    from ale_py.vector_env import AtariVectorEnv

    num_envs = spec["num_envs"]
    height, width = spec["observation_shape"][1:]
    settings = {
        "num_envs": num_envs,
        "batch_size": num_envs // 2 if spec["asynchronous"] else num_envs,
        "num_threads": spec["env_threads"],
        "thread_affinity_offset": spec["affinity_offset"],
        "img_height": height,
        "img_width": width,
        "life_loss_info": True,
        "max_num_frames_per_episode": 4 * MAX_STEPS,
    }
    env = AtariVectorEnv(spec["game"], **settings)
    observation, _ = env.reset(seed=spec["seed"])

    def advance(actions: NDArray[np.int64]) -> NDArray[np.uint8]:
        return env.step(actions)[0]

    return Peer(observation, advance, int(env.single_action_space.n), settings)


def make_gymnasium(spec: dict[str, Any]) -> Peer:
    """Gymnasium's vector environment over processes. It has no asynchronous mode in our sense."""
    import functools

    from gymnasium.vector import AsyncVectorEnv

    from benchmarks.peers.torchrl_training import make_wrapped

    make = functools.partial(make_wrapped, spec["game"], spec["observation_shape"])
    env = AsyncVectorEnv([make] * spec["num_envs"], shared_memory=True, copy=False)
    observation, _ = env.reset(seed=spec["seed"])

    def advance(actions: NDArray[np.int64]) -> NDArray[np.uint8]:
        return env.step(actions)[0]

    settings = {"num_envs": spec["num_envs"], "shared_memory": True, "copy": False}
    return Peer(observation, advance, int(env.single_action_space.n), settings)


if __name__ == "__main__":
    main()
