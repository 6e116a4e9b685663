"""The replay memory: the last so many steps of every simulator, and transitions made of them.

Organised by simulator: ``[S, B]``, a ring of ``S`` slots for each of the ``B`` environments, all at
the same place. A slot holds one step: the newest frame of its observation, the action, and what
came of it. Stacks of frames, n-step returns and the end of episodes are put together when a
transition is drawn, by a few gathers, so that nothing has to be mended later.

Steps are counted from 0 for each environment; step ``s`` lies in slot ``s % S``. With ``c`` steps
stored, those that can be drawn are ``low <= s < high``:

- ``high = c - n_step``: the observation ``n_step`` later is there.
- ``low = c - S + frame_stack - 1``, or 0: the frames before are there.

A step whose return would cross a truncation is never learned from, nor one not taken. That is
decided: the code published with Stooke and Abbeel 2018 (arXiv:1803.02811) takes a truncation for
the end of the game, with value 0, which is wrong; to bootstrap there as A2C and PPO do, final
observations would have to be kept beside the ring. What is given up is little: the last ``n_step``
of at most 27,000 steps of a game that ran into its limit, and of a worker that was lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.agents import RolloutTensors
from accel_rl.topology import free_memory


@dataclass(frozen=True, kw_only=True)
class ReplaySpec:
    """What a replay memory holds.

    ``size``: transitions in all, rounded up to a multiple of ``num_envs``. ``observation_shape``:
    where ``frame_stack`` is above 1 its first axis is the stack, newest last. ``horizon``: steps of
    each environment that come at a time.

    Raises:
        ValueError: the ring is too short for that, or the stack too long.
    """

    size: int
    num_envs: int
    horizon: int
    observation_shape: tuple[int, ...]
    observation_dtype: torch.dtype
    frame_stack: int = 1
    n_step: int = 1
    gamma: float = 0.99

    def __post_init__(self) -> None:
        if self.frame_stack > 256:  # ``age`` is a byte
            raise ValueError(
                f"frame_stack is {self.frame_stack}; a replay rebuilds stacks of up to 256 frames"
            )
        needed = (self.horizon + self.n_step + self.frame_stack) * self.num_envs
        if self.size < needed:
            raise ValueError(
                f"replay_size is {self.size}; with {self.num_envs} environments, rollouts of "
                f"{self.horizon} steps, {self.n_step}-step returns and stacks of "
                f"{self.frame_stack} frames it must be at least {needed}"
            )

    @property
    def num_slots(self) -> int:
        """``S``, for each environment."""
        return -(-self.size // self.num_envs)

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return self.observation_shape[1:] if self.frame_stack > 1 else self.observation_shape

    @property
    def nbytes(self) -> int:
        """Bytes of the memory, priorities left out."""
        frame = prod(self.frame_shape) * self.observation_dtype.itemsize
        return self.num_slots * self.num_envs * (frame + _STEP_BYTES)


_FIELDS = {
    "action": torch.int64,
    "reward": torch.float32,
    "terminated": torch.bool,
    "truncated": torch.bool,
    "valid": torch.bool,
    "age": torch.uint8,  # frames before this one in its stack that are not blank
}
_STEP_BYTES = sum(dtype.itemsize for dtype in _FIELDS.values())


class Transitions(NamedTuple):
    """``N`` transitions, on the memory's device.

    ``reward`` is the discounted sum of up to ``n_step`` rewards, and ``discount`` the weight of the
    value of ``next_observation``: 0 where the episode terminated, else ``gamma ** n_step``. Those
    that are not ``valid`` count for nothing. ``step``, ``env``: where they lie.
    """

    observation: Tensor  # [N, ...]
    action: Tensor  # [N] int64
    reward: Tensor  # [N] float32
    discount: Tensor  # [N] float32
    next_observation: Tensor  # [N, ...]
    valid: Tensor  # [N] bool
    step: Tensor  # [N] int64
    env: Tensor  # [N] int64


class Replay:
    """The memory on ``device``.

    ``num_learners``: that divide ``replay_size``; each has a memory like this one, ``num_local`` of
    them on this machine.

    ``low``, ``high``: the steps that can be drawn, see above. They follow from how much has been
    stored alone, so no device is asked for them.

    Raises:
        ValueError: the device has not as much memory free.
    """

    def __init__(
        self, spec: ReplaySpec, device: torch.device, num_learners: int = 1, num_local: int = 1
    ) -> None:
        check_free_memory(spec.nbytes, spec.size, device, num_learners, num_local)
        self.spec = spec
        self.device = device
        self.num_stored = 0
        try:
            self._allocate()
        except torch.OutOfMemoryError as error:  # another learner on this GPU came first
            raise _too_large(spec.nbytes, spec.size, device, num_learners) from error

    def _allocate(self) -> None:
        spec, device = self.spec, self.device
        S, B = spec.num_slots, spec.num_envs
        # One more, which stays blank, for what is older than an episode.
        shape = (S * B + 1, *spec.frame_shape)
        self._all_frames = torch.zeros(shape, dtype=spec.observation_dtype, device=device)
        self._frames = self._all_frames[:-1].view(S, B, *spec.frame_shape)
        self._fields = {
            name: torch.zeros(S, B, dtype=dtype, device=device) for name, dtype in _FIELDS.items()
        }
        self._next_age = torch.zeros(B, dtype=torch.uint8, device=device)
        # Coming steps whose stacks may hold frames from before the first that is here.
        self._num_unknown = torch.full((B,), spec.frame_stack - 1, device=device)
        shape = (B, *spec.observation_shape)
        self._next_observation = torch.zeros(shape, dtype=spec.observation_dtype, device=device)

    @property
    def high(self) -> int:
        return max(0, self.num_stored - self.spec.n_step)

    @property
    def low(self) -> int:
        return max(0, self.num_stored - self.spec.num_slots + self.spec.frame_stack - 1)

    @property
    def can_be_drawn(self) -> bool:
        """Whether there are steps to draw; the first ``frame_stack - 1`` of all are never valid."""
        return self.high > max(self.low, self.spec.frame_stack - 1)

    def append(self, batch: RolloutTensors) -> None:
        """Store a rollout ``[T, B]``, over the oldest steps.

        An environment that does not begin where the rollout before ended has been replaced
        meanwhile: its last step counts as truncated. If the new one has taken steps before, whose
        frames are not here, its first ``frame_stack - 1`` steps are not valid.
        """
        T = len(batch.action)
        if self.num_stored:
            self._cut_replaced(batch.observation[0])
        self._next_observation.copy_(batch.observation[T])
        frames = batch.observation[:T]
        if self.spec.frame_stack > 1:
            frames = frames[:, :, -1]
        is_known = torch.arange(T, device=self.device).unsqueeze(1) >= self._num_unknown
        # In place, like all that is kept: a new tensor would be the memory of the stream that runs.
        self._num_unknown.sub_(T).clamp_(min=0)
        columns = {
            "action": batch.action,
            "reward": batch.reward,
            "terminated": batch.terminated,
            "truncated": batch.truncated,
            "valid": batch.valid & is_known,
            "age": self._ages(batch),
        }
        for rows, slots in self._slots(self.num_stored, self.num_stored + T):
            self._frames[slots] = frames[rows]
            for name, values in columns.items():
                self._fields[name][slots] = values[rows]
        self.num_stored += T

    def draw_uniformly(self, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Steps and environments, ``[num]`` int64 each, with replacement."""
        options: dict[str, Any] = {"generator": generator, "device": self.device}
        step = torch.randint(self.low, self.high, (num,), **options)
        return step, torch.randint(self.spec.num_envs, (num,), **options)

    def gather(self, step: Tensor, env: Tensor) -> Transitions:
        """The transitions of these steps and environments, ``[N]`` int64 each."""
        reward, discount, valid = self.window(step, env)
        return Transitions(
            observation=self._stacks(step, env),
            action=self._fields["action"][step % self.spec.num_slots, env],
            reward=reward,
            discount=discount,
            next_observation=self._stacks(step + self.spec.n_step, env),
            valid=valid,
            step=step,
            env=env,
        )

    def window(self, step: Tensor, env: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return, discount and validity of the ``n_step`` steps from ``step`` on, of any one shape.

        The return ends with the step that terminates.
        """
        spec = self.spec
        offsets = torch.arange(spec.n_step, device=self.device)
        steps = (step.unsqueeze(-1) + offsets) % spec.num_slots
        index = steps * spec.num_envs + env.unsqueeze(-1)  # [..., n]
        reward, terminated, truncated, valid = (
            self._fields[name].view(-1)[index]
            for name in ("reward", "terminated", "truncated", "valid")
        )
        goes_on = (~terminated).cumprod(-1)  # int64: 1 up to the step before the one that ends
        is_reached = torch.cat((torch.ones_like(goes_on[..., :1]), goes_on[..., :-1]), -1)
        weight = is_reached * spec.gamma ** offsets.float()
        is_cut = (is_reached.bool() & truncated & ~terminated).any(-1)
        discount = goes_on[..., -1] * spec.gamma**spec.n_step
        return (weight * reward).sum(-1), discount.float(), valid[..., 0] & ~is_cut

    def get_state(self) -> dict[str, Any]:
        """All of it, on the CPU."""
        return {
            "frames": self._frames.cpu(),
            "fields": {name: values.cpu() for name, values in self._fields.items()},
            "next_age": self._next_age.cpu(),
            "num_unknown": self._num_unknown.cpu(),
            "next_observation": self._next_observation.cpu(),
            "num_stored": self.num_stored,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._frames.copy_(state["frames"])
        for name, values in self._fields.items():
            values.copy_(state["fields"][name])
        self._next_age.copy_(state["next_age"])
        self._num_unknown.copy_(state.get("num_unknown", torch.zeros(())))  # not in earlier ones
        self._next_observation.copy_(state["next_observation"])
        self.num_stored = state["num_stored"]

    def _stacks(self, step: Tensor, env: Tensor) -> Tensor:
        """Observations ``[N, ...]``, with blanks before the episode's start."""
        spec = self.spec
        B, S, stack = spec.num_envs, spec.num_slots, spec.frame_stack
        before = torch.arange(stack - 1, -1, -1, device=self.device)
        index = (step.unsqueeze(1) - before) % S * B + env.unsqueeze(1)  # [N, frame_stack]
        if stack > 1:
            age = self._fields["age"].view(-1)[index[:, -1:]]
            index = index.where(before <= age, S * B)
        rows = self._all_frames.view(S * B + 1, -1).index_select(0, index.view(-1))
        return rows.view(len(step), *spec.observation_shape)

    def _cut_replaced(self, observation: Tensor) -> None:
        is_other = (observation != self._next_observation).view(len(observation), -1).any(1)
        last = (self.num_stored - 1) % self.spec.num_slots
        self._fields["truncated"][last] |= is_other
        self._next_age.mul_(~is_other)
        if self.spec.frame_stack > 1:
            has_history = (observation[:, :-1] != 0).flatten(1).any(1)
            self._num_unknown.masked_fill_(is_other & has_history, self.spec.frame_stack - 1)

    def _ages(self, batch: RolloutTensors) -> Tensor:
        """``[T, B]`` uint8: earlier frames in each observation's stack that are not blank."""
        most = self.spec.frame_stack - 1
        ended = batch.terminated | batch.truncated | ~batch.valid
        ages = []
        for t in range(len(ended)):
            ages.append(self._next_age.clone())
            self._next_age.add_(self._next_age < most).mul_(~ended[t])
        return torch.stack(ages)

    def _slots(self, start: int, stop: int) -> Iterator[tuple[slice, slice]]:
        """Steps ``start`` to ``stop`` as rows counted from 0 and their slots: one run or two."""
        S = self.spec.num_slots
        first = start % S
        fits = min(stop - start, S - first)
        yield slice(0, fits), slice(first, first + fits)
        if fits < stop - start:
            yield slice(fits, stop - start), slice(0, stop - start - fits)


def check_free_memory(
    nbytes: int, size: int, device: torch.device, num_learners: int = 1, num_local: int = 1
) -> None:
    """Raises ValueError unless ``device`` has ``nbytes`` free, for a replay of ``size``.

    ``num_learners``: of whose replay that is one part; the machine must hold ``num_local`` of them.
    """
    if device.type == "cuda":
        num_local = 1  # what others have is not free: they take it at once
    if nbytes * num_local > _free(device):
        raise _too_large(nbytes, size, device, num_learners, num_local)


def _free(device: torch.device) -> int:
    """Bytes that a replay may take: of a GPU all but a tenth, which the networks need."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] * 9 // 10
    return free_memory()


def _too_large(
    nbytes: int, size: int, device: torch.device, num_learners: int, num_local: int = 1
) -> ValueError:
    free = _free(device)
    fits = num_learners * int(size * free / (nbytes * num_local) * 0.9)
    what = f"a replay of replay_size={size}"
    if num_learners > 1:
        what = f"each of {num_learners} learners' parts of the replay"
    shared = f" for {num_local} of them" if num_local > 1 else ""
    return ValueError(
        f"{what} takes {nbytes / 1e9:.1f} GB, and {device} has {free / 1e9:.1f} GB free for it"
        f"{shared}; use replay_size={fits} or less, or another replay device"
    )
