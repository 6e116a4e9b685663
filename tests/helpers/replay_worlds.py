"""Random episodes and small replays of them, for the tests of replay memories."""

from typing import Any

import numpy as np
import torch

from accel_rl.agents import RolloutTensors
from accel_rl.algos.replay import Replay, ReplaySpec
from accel_rl.spaces import Leaf, discrete

CPU = torch.device("cpu")
T, B = 3, 4


class World:
    """Random episodes whose frames are numbered, with all that a learner was ever shown of them.

    A step may end the game (terminated), cut it off (truncated), do both, or lose a life. Stacks
    are blank before an episode's first frame and after a lost life. With ``waits`` the rest of a
    rollout after an episode's end is not valid. ``finals``: the steps, (environment, step), that
    have a final observation, in the order in which a learner is given them.
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
        self.finals: list[tuple[int, int]] = []

    def rollout(self) -> RolloutTensors:
        rows = [self._step(b, t) for t in range(T) for b in range(B)]
        finals = [(i // B, i % B) for i, row in enumerate(rows) if "final" in row]
        self.finals += [(b, len(self.steps[b]) - T + t) for t, b in finals]
        observation = [row["observation"] for row in rows] + [self._observe(b) for b in range(B)]

        def field(name: str, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([row[name] for row in rows], dtype=dtype).view(T, B)

        if self.waits:
            for b in range(B):
                if not rows[(T - 1) * B + b]["valid"] or rows[(T - 1) * B + b]["ended"]:
                    self._restart(b)
        shape = (self.stack, 2) if self.stack > 1 else (2,)
        final = [rows[t * B + b]["final"] for t, b in finals]
        return RolloutTensors(
            observation=torch.tensor(observation, dtype=torch.int32).reshape(T + 1, B, *shape),
            action=field("action", torch.int64),
            reward=field("reward", torch.float32),
            terminated=field("terminated", torch.bool),
            truncated=field("truncated", torch.bool),
            valid=field("valid", torch.bool),
            final_observation=torch.tensor(final, dtype=torch.int32).reshape(-1, *shape),
            final_step=torch.tensor([t for t, _ in finals], dtype=torch.int64),
            final_env=torch.tensor([b for _, b in finals], dtype=torch.int64),
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
            if kind == "cut":
                self._push(b)
                row["final"] = self._observe(b)
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


def make_spec(stack: int = 3, n: int = 1, slots: int = 17, **options: Any) -> ReplaySpec:
    return ReplaySpec(
        size=slots * B,
        num_envs=B,
        horizon=T,
        observation=Leaf((stack, 2) if stack > 1 else (2,), np.dtype(np.int32)),
        action=discrete(5),
        frame_stack=stack,
        n_step=n,
        gamma=0.9,
        **options,
    )


def make(stack: int = 3, n: int = 1, slots: int = 17) -> Replay:
    return Replay(make_spec(stack, n, slots), CPU)


def everything(replay: Replay) -> tuple[torch.Tensor, torch.Tensor]:
    """What may be drawn: steps, or numbers of sequences, and their environments."""
    num_envs = replay.spec.num_envs
    step = torch.arange(replay.low, replay.high).repeat_interleave(num_envs)
    return step, torch.arange(num_envs).repeat(replay.high - replay.low)


def slow_window(
    steps: list[dict[str, Any]], s: int, n: int, gamma: float
) -> tuple[float, float, Any]:
    """Return, discount and next observation (None: not seen yet, or of no interest)."""
    total = 0.0
    for k in range(n):
        row = steps[s + k]
        total += gamma**k * row["reward"]
        if row["terminated"]:
            return total, 0.0, None
        if row["truncated"]:
            return total, gamma ** (k + 1), row["final"]
    return total, gamma**n, steps[s + n]["observation"] if s + n < len(steps) else None
