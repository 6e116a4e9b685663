"""Environments with every space, whose rollouts follow from seed and actions alone."""

import threading
import zlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (3, 5, 5), np.uint8),
        "body": spaces.Dict(
            {"speed": spaces.Box(-1, 1, (3,), np.float64), "on": spaces.Discrete(2)}
        ),
        "pair": spaces.Tuple((spaces.MultiBinary(3), spaces.Box(-np.inf, 0.5, (), np.float32))),
    }
)
GAS = spaces.Dict(
    {
        "gear": spaces.Discrete(3, start=-1),
        "gas": spaces.Box(-2, np.array([1, 3]), (2,), np.float64),
    }
)
PAIRS: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "box": (spaces.Box(-1, 1, (3,)), spaces.Box(-2.0, 2.0, (2, 2), np.float32)),
    "number": (spaces.Box(-1, 1, (), np.float64), spaces.Box(-0.5, 0.5, (), np.float16)),
    "discrete": (spaces.Discrete(7, start=3), spaces.Discrete(3, start=2)),
    "multi-discrete": (
        spaces.MultiDiscrete([4, 5]),
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, -3]]),
    ),
    "multi-binary": (spaces.MultiBinary([2, 2]), spaces.MultiBinary(5)),
    "dict": (NESTED, GAS),
    "tuple": (
        spaces.Tuple((spaces.Discrete(5), spaces.Box(0, 1, (2,), np.float16))),
        spaces.Tuple((spaces.MultiDiscrete([2, 2]), spaces.Dict({"deep": spaces.Discrete(4)}))),
    ),
    "integers": (spaces.Box(-5, 5, (2,), np.int16), spaces.Box(1, 255, (3,), np.uint8)),
}


def checksum(value: Any) -> int:
    """A number that changes with any part of a value of a space."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, tuple | list):
        return zlib.crc32(b"".join(checksum(each).to_bytes(4, "big") for each in value))
    return zlib.crc32(np.ascontiguousarray(value).astype(np.float64).tobytes())


class SpaceEnv(gymnasium.Env[Any, Any]):
    """Observations are samples seeded by episode, step and all actions; rewards follow likewise.

    Episodes last 1 to 8 steps; some are truncated. Its own check: every action is in its space.
    """

    def __init__(self, name: str) -> None:
        self.observation_space, self.action_space = PAIRS[name]
        self.history = self.episode = self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.history = seed
        if options:
            self.history = options["history"]
        self.episode += 1
        self.t = 0
        self.length = int(self.np_random.integers(1, 9))
        self.is_cut_off = bool(self.np_random.random() < 0.4)
        return self.observe(), self.tell()

    def step(self, action: Any) -> Any:
        if isinstance(action, np.floating):  # as Gymnasium gives it
            action = np.asarray(action)
        assert self.action_space.contains(action), (self.action_space, action)
        self.history = zlib.crc32(f"{self.history} {checksum(action)}".encode())
        self.t += 1
        ended = self.t == self.length
        ends = ended and not self.is_cut_off, ended and self.is_cut_off
        return self.observe(), self.history / 2**32, *ends, self.tell()

    def observe(self) -> Any:
        self.observation_space.seed(zlib.crc32(f"{self.history} {self.episode} {self.t}".encode()))
        return self.observation_space.sample()

    def tell(self) -> dict[str, Any]:
        return {"step": self.t}

    def get_state(self) -> Any:
        more = self.np_random.bit_generator.state
        return {"rng": more, "play": [self.history, self.episode, self.t, self.length]} | {
            "is_cut_off": self.is_cut_off
        }

    def set_state(self, state: Any) -> None:
        self.np_random.bit_generator.state = state["rng"]
        self.history, self.episode, self.t, self.length = state["play"]
        self.is_cut_off = state["is_cut_off"]


MASKED: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(6, start=1),
    "multi-discrete": spaces.MultiDiscrete([4, 3, 5], start=[0, 2, 0]),
    "dict": spaces.Dict({"tool": spaces.Discrete(4), "force": spaces.Box(0, 1, (2,))}),
}


class MaskedEnv(SpaceEnv):
    """Counts actions that its mask forbids, in all environments of the process: ``illegal``.

    The mask is in the observation, beside what is observed, or with ``in_info`` in the info.
    """

    illegal = 0

    def __init__(self, name: str, in_info: bool = False) -> None:
        self.history = self.episode = self.t = 0
        self.action_space, self.in_info = MASKED[name], in_info
        self.inner = spaces.Box(-1, 1, (3,))
        self.observation_space = self.inner
        if not in_info:
            parts = {"observation": self.inner, "action_mask": self.mask_space()}
            self.observation_space = spaces.Dict(parts)

    def mask_space(self) -> spaces.Space[Any]:
        if isinstance(self.action_space, spaces.Dict):
            return spaces.Dict({"tool": spaces.MultiBinary(4)})
        if isinstance(self.action_space, spaces.Discrete):
            return spaces.MultiBinary(int(self.action_space.n))
        return spaces.Box(0, 1, (int(self.action_space.nvec.sum()),), np.bool_)

    def counts(self) -> list[int]:
        space = self.action_space
        if isinstance(space, spaces.Dict):
            return [4]
        return [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.tolist()

    def make_mask(self) -> Any:
        """A few allowed values of each integer, others at each step; none at the end."""
        rng = np.random.default_rng(zlib.crc32(f"{self.history} {self.episode} {self.t}".encode()))
        parts = []
        for count in self.counts():
            part = rng.random(count) < 0.3
            part[rng.integers(count)] = True
            parts.append(part)
        flat = np.concatenate(parts)
        return flat & (self.t < self.length)

    def observe(self) -> Any:
        self.inner.seed(zlib.crc32(f"{self.history} {self.t}".encode()))
        observation = self.inner.sample()
        if self.in_info:
            return observation
        mask = self.make_mask().astype(np.bool_ if self.mask_space().dtype == bool else np.int8)
        is_dict = isinstance(self.action_space, spaces.Dict)
        return {"observation": observation, "action_mask": {"tool": mask} if is_dict else mask}

    def tell(self) -> dict[str, Any]:
        mask = self.make_mask()
        is_dict = isinstance(self.action_space, spaces.Dict)
        return {"action_mask": {"tool": mask} if is_dict else mask} if self.in_info else {}

    def step(self, action: Any) -> Any:
        values = action["tool"] if isinstance(self.action_space, spaces.Dict) else action
        starts = getattr(self.action_space, "start", 0)
        begin, mask = 0, self.make_mask()
        for value, count in zip(np.ravel(values - starts), self.counts(), strict=True):
            if not mask[begin + value]:
                MaskedEnv.illegal += 1
            begin += count
        return super().step(action)


def masked() -> MaskedEnv:
    """For runs, ``env=space_envs:masked``."""
    return MaskedEnv("discrete")


class Odd(SpaceEnv):
    def fail(self) -> None:
        raise OSError("broken pipe")

    def give_lock(self) -> Any:
        return threading.Lock()


class Flat(SpaceEnv):
    """A Dict of one level, which is what Stable-Baselines3 takes."""

    def __init__(self, name: str) -> None:
        self.observation_space = spaces.Dict(
            {"body": spaces.Box(-1, 1, (3,)), "place": spaces.Discrete(4)}
        )
        self.action_space = spaces.MultiDiscrete([2, 3])
        self.history = self.episode = self.t = 0


class Pictures(gymnasium.Env[Any, Any]):
    """Images with the channels last, three steps an episode."""

    observation_space = gymnasium.spaces.Box(0, 255, (40, 36, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.full((40, 36, 3), self.t, np.uint8), {}

    def step(self, action: int) -> Any:
        self.t += 1
        return np.full((40, 36, 3), self.t, np.uint8), 1.0, self.t == 3, False, {}
