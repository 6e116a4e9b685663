"""The replay memory: the last so many steps of every simulator, and transitions made of them.

A ring of ``S`` slots for each of the ``B`` environments. Step ``s`` of environment ``b``, counted
from 0, is in slot ``s % S``: the newest frame of its observation, the action, and a row of `STEP`.
Observations and actions of a mapping are stored whole, each leaf in a tensor of its own. Rows of
frames are:

    row = s % S * B + b        the newest frame of step s, before its action
    S * B                      `blank_row`: zeros, for frames before the episode
    S * B + 1 + k % K          the newest frame of final observation k, a ring of its own

Stacks of frames, n-step returns and ends of episodes are put together when a transition is drawn,
by a few gathers, so that nothing has to be mended later. With ``c`` steps stored, those that can be
drawn are ``low <= s < high``:

- ``high = c - n_step``: the observation ``n_step`` later is there.
- ``low = c - S + frame_stack - 1``, or 0: the frames before are there.

A return that meets a truncation ends there, and goes on with the value of the final observation,
as in A2C and PPO; the code published with Stooke and Abbeel 2018 (arXiv:1803.02811) takes it for
the end of the game, with value 0. Where a final observation was overwritten before its step, or
never came because a worker was lost, steps whose return would need it are not valid: they count for
nothing, like steps that were never taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import setitem
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accel_rl.agents import HostFlags, RolloutTensors
from accel_rl.algos.replay.spec import (
    STEP,
    ReplaySpec,
    check_free_memory,
    replay_too_large,
    runs_of,
    zeros_in_huge_pages,
)
from accel_rl.spaces import Leaf, Space, map_leaves


class Transitions(NamedTuple):
    """``N`` transitions, on the memory's device.

    ``reward`` is the discounted sum of ``n`` rewards: ``n_step``, or as many as there are up to the
    end of the episode. ``discount`` is the weight of the value of ``next_observation``: 0 where the
    episode terminated, else ``gamma ** n``. Those that are not ``valid`` count for nothing.
    ``step``, ``env``: where they lie.
    """

    observation: Any  # [N, ...], a tensor, or a dict of tensors for a mapping
    action: Any  # [N, ...], likewise; [N] int64 for one integer
    reward: Tensor  # [N] float32
    discount: Tensor  # [N] float32
    next_observation: Any  # as observation
    valid: Tensor  # [N] bool
    step: Tensor  # [N] int64
    env: Tensor  # [N] int64


class Window(NamedTuple):
    """The steps from one on that its return is made of; all of the shape that was asked for.

    ``length`` is their number, and ``final`` that of the final observation behind them, or -1; the
    others are as in `Transitions`.
    """

    reward: Tensor  # float32
    discount: Tensor  # float32
    valid: Tensor  # bool
    length: Tensor  # int64
    final: Tensor  # int64


class Replay:
    """The memory on ``device``.

    ``num_learners``: that divide ``buffer_size``; each has a memory like this one, ``num_local`` of
    them on this machine.

    ``low``, ``high``: the steps that can be drawn, see above. They follow from how much has been
    stored alone, so no device is asked for them.

    Raises:
        ValueError: the device has not as much memory free.
    """

    def __init__(
        self, spec: ReplaySpec, device: torch.device, num_learners: int = 1, num_local: int = 1
    ) -> None:
        check_free_memory(spec, device, num_learners, num_local)
        self.spec = spec
        self.device = device
        self.num_stored = 0
        try:
            self._allocate()
        except torch.OutOfMemoryError as error:  # another learner on this GPU came first
            raise replay_too_large(spec, device, num_learners) from error

    def _allocate(self) -> None:
        spec, device = self.spec, self.device
        S, B = spec.num_slots, spec.num_envs
        self._blank_row = S * B
        num_rows = S * B + 1 + spec.num_finals
        huge = zeros_in_huge_pages if device.type == "cpu" else partial(torch.zeros, device=device)
        self._all_frames = _zeros(spec.frame, (num_rows,), huge)
        self._frames = map_leaves(lambda rows: rows[: S * B].unflatten(0, (S, B)), self._all_frames)
        self._finals = map_leaves(lambda rows: rows[S * B + 1 :], self._all_frames)
        self._num_finals = 0  # that ever came
        zeros = partial(torch.zeros, device=device)
        self._first_final = zeros((), dtype=torch.int64)  # the oldest that is kept
        self._action = _zeros(spec.action, (S, B), zeros)
        self._steps = zeros(S, B, STEP.itemsize // 8, dtype=torch.int64)
        self._fields = _fields_of(self._steps)  # views, [S, B] each
        # Of the coming rollout, on the host, which knows all that they follow from.
        self._next_age = np.zeros(B, np.uint8)
        # Coming steps whose stacks may hold frames from before the first that is here.
        self._num_unknown = np.full(B, spec.frame_stack - 1, np.int64)
        self._next_observation = _zeros(spec.observation, (B,), zeros)
        self._drawn = zeros(2, 0, dtype=torch.int64)

    @property
    def has_finals(self) -> bool:
        """Whether any final observation ever came."""
        return self._num_finals > 0

    @property
    def high(self) -> int:
        return max(0, self.num_stored - self.spec.n_step)

    @property
    def low(self) -> int:
        return max(0, self.num_stored - self.spec.num_slots + self.spec.frame_stack - 1)

    @property
    def num_slots(self) -> int:
        """Places of each environment for what is drawn."""
        return self.spec.num_slots

    def are_valid(self, step: Tensor, env: Tensor) -> Tensor:
        """Which of these steps, of one shape with ``env``, count for something, bool."""
        return self.window(step, env).valid

    @property
    def can_be_drawn(self) -> bool:
        """Whether there are steps to draw; the first ``frame_stack - 1`` of all are never valid."""
        return self.high > max(self.low, self.spec.frame_stack - 1)

    def append(self, batch: RolloutTensors) -> None:
        """Store a rollout ``[T, B]``, over the oldest steps.

        An environment that does not begin where the rollout before ended has been replaced
        meanwhile: its last step counts as truncated, without a final observation. If the new one
        has taken steps before, whose frames are not here, its first ``frame_stack - 1`` steps are
        not valid.
        """
        T, host = len(batch.reward), batch.flags
        if self.num_stored and not host.follows:
            self._cut_replaced(map_leaves(lambda rows: rows[0], batch.observation))
        map_leaves(lambda own, rows: own.copy_(rows[T]), self._next_observation, batch.observation)
        frames = batch.observation
        if self.spec.frame_stack > 1:
            frames = frames[:, :, -1]
        steps = self._describe(host)
        if self.device.type == "cuda":
            steps = steps.pin_memory()
        self._keep_finals(batch.final_observation, len(host.final_step))
        for offset, slot, num in runs_of(self.num_stored, self.num_stored + T, self.spec.num_slots):
            rows, slots = slice(offset, offset + num), slice(slot, slot + num)
            _store(self._frames, slots, frames, rows)
            _store(self._action, slots, batch.action, rows)
            self._steps[slots].copy_(steps[rows], non_blocking=True)
            self._fields["reward"][slots] = batch.reward[rows]
        self.num_stored += T

    def draw_uniformly(self, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Steps and environments, ``[num]`` int64 each, with replacement.

        The next call with the same ``num`` overwrites these tensors. So a CUDA graph finds every
        draw at the same address.
        """
        if self._drawn.shape[1] != num:
            self._drawn = torch.empty(2, num, dtype=torch.int64, device=self.device)
        step, env = self._drawn
        torch.randint(self.low, self.high, (num,), generator=generator, out=step)
        return step, torch.randint(self.spec.num_envs, (num,), generator=generator, out=env)

    def gather(self, step: Tensor, env: Tensor) -> Transitions:
        """The transitions of these steps and environments, ``[N]`` int64 each."""
        window = self.window(step, env)
        final = None
        if self.has_finals:
            final = torch.cat((torch.full_like(window.final, -1), window.final))
        steps = torch.cat((step, step + window.length))
        both, N = self.observations(steps, env.repeat(2), final), len(step)
        return Transitions(
            observation=map_leaves(lambda rows: rows[:N], both),
            action=self.actions(step, env),
            reward=window.reward,
            discount=window.discount,
            next_observation=map_leaves(lambda rows: rows[N:], both),
            valid=window.valid,
            step=step,
            env=env,
        )

    def actions(self, step: Tensor, env: Tensor) -> Any:
        """Actions of these steps, of any one shape."""
        slot = step % self.spec.num_slots
        return map_leaves(lambda rows: rows[slot, env], self._action)

    def rewards(self, step: Tensor, env: Tensor) -> Tensor:
        """Rewards of these steps, of any one shape, float32."""
        reward: Tensor = self._fields["reward"][step % self.spec.num_slots, env]
        return reward

    def have_ended(self, step: Tensor, env: Tensor) -> Tensor:
        """Whether an episode ended with each step, of any one shape, bool."""
        at = step % self.spec.num_slots, env
        ended: Tensor = self._fields["terminated"][at] | self._fields["truncated"][at]
        return ended

    def finals(self, step: Tensor, env: Tensor) -> Tensor:
        """The number of the final observation behind each step, int64; -1: there is none (left)."""
        final = self._fields["final"][step % self.spec.num_slots, env]
        return torch.where(self._are_kept(final), final, -1)

    def _are_kept(self, final: Tensor) -> Tensor:
        return final >= self._first_final  # which is never below 0

    def window(self, step: Tensor, env: Tensor) -> Window:
        """Return the windows of the steps from ``step`` on, of any one shape."""
        spec = self.spec
        if spec.n_step == 1:
            return self._step_windows(step, env)
        offsets = torch.arange(spec.n_step, device=self.device)
        steps = (step.unsqueeze(-1) + offsets) % spec.num_slots
        index = steps * spec.num_envs + env.unsqueeze(-1)  # [..., n]
        stored = self._steps.flatten(0, 1)
        rows = stored.index_select(0, index.view(-1)).view(*index.shape, stored.shape[1])
        fields = _fields_of(rows)  # [..., n] each
        terminated = fields["terminated"]
        # int64: 1 before the step that ends
        goes_on = (~(terminated | fields["truncated"])).cumprod(-1)
        is_reached = torch.cat((torch.ones_like(goes_on[..., :1]), goes_on[..., :-1]), -1)
        length = is_reached.sum(-1)
        is_over = (is_reached.bool() & terminated).any(-1)
        is_cut = (goes_on[..., -1] == 0) & ~is_over
        final = fields["final"].gather(-1, length.unsqueeze(-1) - 1).squeeze(-1)
        is_kept = self._are_kept(final)
        return Window(
            reward=(is_reached * spec.gamma ** offsets.float() * fields["reward"]).sum(-1),
            discount=(~is_over * spec.gamma ** length.float()).float(),
            valid=fields["valid"][..., 0] & (~is_cut | is_kept),
            length=length,
            final=torch.where(is_cut & is_kept, final, -1),
        )

    def _step_windows(self, step: Tensor, env: Tensor) -> Window:
        """`window` of single steps, in fewer operations."""
        index = step % self.spec.num_slots * self.spec.num_envs + env
        stored = self._steps.flatten(0, 1)
        fields = _fields_of(stored.index_select(0, index.view(-1)).view(*index.shape, -1))
        is_over, final = fields["terminated"], fields["final"]
        is_cut, is_kept = fields["truncated"] & ~is_over, self._are_kept(final)
        return Window(
            reward=fields["reward"],
            discount=~is_over * float(self.spec.gamma),
            valid=fields["valid"] & (~is_cut | is_kept),
            length=torch.ones_like(step),
            final=torch.where(is_cut & is_kept, final, -1),
        )

    def get_state(self) -> dict[str, Any]:
        """All of it, on the CPU."""
        fields = {"action": self._action, **self._fields}
        return {
            "frames": map_leaves(Tensor.cpu, self._frames),
            "fields": map_leaves(lambda each: each.cpu().contiguous(), fields),
            "next_age": torch.tensor(self._next_age),
            "num_unknown": torch.tensor(self._num_unknown),
            "next_observation": map_leaves(Tensor.cpu, self._next_observation),
            "num_stored": self.num_stored,
            "finals": map_leaves(Tensor.cpu, self._finals),
            "num_finals": torch.tensor(self._num_finals),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        map_leaves(Tensor.copy_, self._frames, state["frames"])
        fields = {"action": self._action, **self._fields}
        for name, values in state["fields"].items():
            map_leaves(Tensor.copy_, fields[name], values)
        map_leaves(Tensor.copy_, self._finals, state["finals"])
        self._count_finals(int(state["num_finals"]))
        self._next_age[:] = state["next_age"]
        self._num_unknown[:] = state["num_unknown"]
        map_leaves(Tensor.copy_, self._next_observation, state["next_observation"])
        self.num_stored = state["num_stored"]

    def observations(self, step: Tensor, env: Tensor, final: Tensor | None = None) -> Any:
        """Return observations ``[N, ...]``, with blanks before the start of an episode.

        Args:
            step: ``[N]`` int64.
            env: ``[N]`` int64.
            final: ``[N]`` int64, final observations to take instead of those of ``step``,
                with the older frames of the step before; -1 for none.
        """
        index = self._frame_rows(step, env, final)

        def take(leaf: Leaf, frames: Tensor) -> Tensor:
            rows, chosen = frames.view(len(frames), -1), index.view(-1)
            # On a GPU only indexing has a kernel that moves 16 bytes at once, since torch 2.8.
            rows = rows[chosen] if rows.is_cuda else rows.index_select(0, chosen)
            return rows.view(len(index), *leaf.shape)

        return map_leaves(take, self.spec.observation, self._all_frames)

    def _frame_rows(self, step: Tensor, env: Tensor, final: Tensor | None) -> Tensor:
        """Return the rows of the frames of `observations`, ``[N, frame_stack]``, oldest first."""
        B, S, stack = self.spec.num_envs, self.spec.num_slots, self.spec.frame_stack
        if stack == 1:
            rows = step % S * B + env
            if final is not None:
                own = self._blank_row + 1 + final % self.spec.num_finals
                rows = torch.where(final >= 0, own, rows)
            return rows.unsqueeze(1)
        before = torch.arange(stack - 1, -1, -1, device=self.device)  # steps before the newest
        if final is not None:  # its frames end one step later, with the frame of its own, at -1
            is_final = (final >= 0).long()
            step = step - is_final
            before = before - is_final.unsqueeze(1)
        step = step.unsqueeze(1)
        rows = (step - before) % S * B + env.unsqueeze(1)
        age = self._fields["age"].view(-1)[step % S * B + env.unsqueeze(1)]
        rows = rows.where(before <= age, self._blank_row)
        if final is not None:
            own = self._blank_row + 1 + final.unsqueeze(1) % self.spec.num_finals
            rows = rows.where(before >= 0, own)
        return rows

    def _describe(self, host: HostFlags) -> Tensor:
        """Rows of `STEP` for a rollout, ``[T, B, 2]`` int64 on the host; rewards are missing."""
        T, B = host.valid.shape
        steps = np.zeros((T, B), STEP)
        steps["terminated"], steps["truncated"] = host.terminated, host.truncated
        steps["valid"] = host.valid & (np.arange(T)[:, None] >= self._num_unknown)
        self._num_unknown = np.maximum(self._num_unknown - T, 0)
        self._number_ages(steps["age"], host)
        number = self._num_finals + np.arange(len(host.final_step))
        at = host.final_step, host.final_env
        steps["final"] = -1
        steps["final"][at] = np.where(host.valid[at], number, -1)  # no step, nothing behind it
        return torch.from_numpy(steps.view(np.int64).reshape(T, B, -1))

    def _number_ages(self, age: NDArray[np.uint8], host: HostFlags) -> None:
        """Write to ``age`` how many earlier frames of each stack are not blank, ``[T, B]``."""
        most = self.spec.frame_stack - 1
        ended = host.terminated | host.truncated | ~host.valid
        for t in range(len(ended)):
            age[t] = self._next_age
            self._next_age = (self._next_age + (self._next_age < most)) * ~ended[t]

    def _keep_finals(self, observation: Any, M: int) -> None:
        """Store the newest frames of ``M`` final observations, over the oldest."""
        if not M:
            return
        newest, num = observation, self.spec.num_finals
        if self.spec.frame_stack > 1:
            newest = observation[:, -1]
        for offset, place, n in runs_of(self._num_finals, self._num_finals + M, num):
            _store(self._finals, slice(place, place + n), newest, slice(offset, offset + n))
        self._count_finals(self._num_finals + M)

    def _count_finals(self, num: int) -> None:
        self._num_finals = num
        # In place: a new tensor would be the memory of the stream that runs.
        self._first_final.fill_(max(0, num - self.spec.num_finals))

    def _cut_replaced(self, observation: Any) -> None:
        """End the episodes of environments that another one stands for. This asks the device."""
        if _are_equal(observation, self._next_observation):
            return
        differs = _rows_differ(observation, self._next_observation)
        is_other = differs.cpu().numpy()
        if not is_other.any():
            return
        self._fields["truncated"][(self.num_stored - 1) % self.spec.num_slots] |= differs
        self._next_age[is_other] = 0
        if self.spec.frame_stack > 1:
            has_history = observation[:, :-1].flatten(1).any(1).bool()  # of bytes it is a byte
            unknown = is_other & has_history.cpu().numpy()
            self._num_unknown[unknown] = self.spec.frame_stack - 1


_PLACES: dict[str, tuple[torch.dtype, int]] = {
    name: (getattr(torch, dtype.name), offset // dtype.itemsize)
    for name, (dtype, offset, *_) in (STEP.fields or {}).items()
}
"""The dtype of each field of `STEP`, and its place in a row of that dtype."""


def _zeros(space: Space, shape: tuple[int, ...], zeros: Callable[..., Tensor]) -> Any:
    """``zeros`` of ``shape`` for each leaf of ``space``, in its shape and dtype."""
    return map_leaves(
        lambda leaf: zeros((*shape, *leaf.shape), dtype=getattr(torch, leaf.dtype.name)), space
    )


def _fields_of(steps: Tensor) -> dict[str, Tensor]:
    """Views ``[...]`` of the fields of rows of `STEP`, ``[..., 2]`` int64."""
    units = {dtype: steps.view(dtype) for dtype, _ in _PLACES.values()}
    return {name: units[dtype].select(-1, at) for name, (dtype, at) in _PLACES.items()}


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return ``tensor`` on ``device``; from the host without waiting, from pinned memory."""
    if tensor.device.type == "cpu" and device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _store(own: Any, at: slice, given: Any, rows: slice) -> None:
    """Write the ``rows`` of every leaf of ``given`` to the places ``at`` of those of ``own``."""
    map_leaves(lambda kept, new: setitem(kept, at, new[rows]), own, given)


def _are_equal(first: Any, second: Any) -> bool:
    if isinstance(first, Mapping):
        return all(_are_equal(each, second[name]) for name, each in first.items())
    return torch.equal(first, second)


def _rows_differ(first: Any, second: Any) -> Tensor:
    """``[B]`` bool, of ``[B, ...]`` each: byte by byte; eight at a time where they come so."""
    if isinstance(first, Mapping):
        parts = [_rows_differ(each, second[name]) for name, each in first.items()]
        return torch.stack(parts).any(0)
    first, second = (each.reshape(len(each), -1).contiguous() for each in (first, second))
    unit = torch.uint8 if first.shape[1] * first.itemsize % 8 else torch.int64
    differs: Tensor = (first.view(unit) != second.view(unit)).any(1)
    return differs
