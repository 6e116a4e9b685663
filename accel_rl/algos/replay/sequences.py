"""Sequences of steps from a replay memory, for networks that remember.

As in R2D2 (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
Learning"): the recurrent state of the policy at the first step of each sequence is stored with it
("stored state"). Sequence ``m`` has the steps from ``m * interval`` on:

    row  0 .. burn_in - 1     only renew the state
         .. + length          are learned from
         .. + n_step          end the returns

Episodes begin anywhere in a sequence. The state becomes zeros there, and the steps of both episodes
are learned from; in R2D2 sequences end with the episode.

A return that meets a truncation goes on with the value of the final observation, which a network
must see after the steps before it. So a batch of ``N`` sequences has ``C`` columns: column ``n`` is
sequence ``n``, and each final observation has a column behind these: a copy of its sequence, with
the final observation after the truncated step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.agents import RolloutTensors
from accel_rl.algos.replay.memory import Replay
from accel_rl.algos.replay.spec import ReplaySpec
from accel_rl.models import Sequences
from accel_rl.spaces import map_leaves


class SequenceBatch(NamedTuple):
    """``N`` sequences of ``L`` steps to learn from, and the ``R`` rows that their returns need.

    ``R`` is burn-in + ``L`` + n_step. Columns from ``N`` to ``C`` are those of final observations.
    Steps that are not ``valid`` count for nothing. ``end``: the place among all ``R * C``
    observations of the observation behind each return; the others are as in `Transitions`.
    """

    observation: Any  # [R * C, ...], time-major, a tensor, or a dict of tensors for a mapping
    state: Tensor  # [C, S], before row 0
    is_first: Tensor  # [R, C] bool, where another episode begins than the one before, from row 1 on
    action: Tensor  # [L, N] int64
    reward: Tensor  # [L, N] float32
    discount: Tensor  # [L, N] float32
    valid: Tensor  # [L, N] bool
    end: Tensor  # [L, N] int64
    previous: Tensor | None  # [R, C, P], the `PreviousInputs`, if the network has some

    @property
    def sequences(self) -> Sequences:
        """The order of the observations, for the network."""
        return Sequences(self.state, self.is_first, self.previous)


class SequenceReplay:
    """A replay whose ``spec`` has sequences, on ``device``; the arguments are those of `Replay`.

    Attributes:
        steps: The steps of which the sequences are made.
    """

    def __init__(
        self, spec: ReplaySpec, device: torch.device, num_learners: int = 1, num_local: int = 1
    ) -> None:
        assert spec.sequences is not None
        self.spec = spec
        self.device = device
        self.steps = Replay(spec, device, num_learners, num_local)
        self._sequences = spec.sequences
        B = spec.num_envs
        shape = self.num_slots, B, spec.sequences.stored_size
        self._state = torch.zeros(shape, device=device)
        self._is_taken = torch.zeros(spec.num_slots, B, dtype=torch.bool, device=device)

    @property
    def num_slots(self) -> int:
        """Sequences of each environment whose beginnings are there."""
        return self.spec.num_slots // self._sequences.interval

    @property
    def num_stored(self) -> int:
        """Steps of each environment that ever came."""
        return self.steps.num_stored

    @property
    def low(self) -> int:
        """Number of the first sequence whose steps, and the frames before them, are all there."""
        return -(-self.steps.low // self._sequences.interval)

    @property
    def high(self) -> int:
        """Number behind the last sequence whose steps, and the returns' ends, are all there."""
        return max(0, (self.num_stored - self._num_rows) // self._sequences.interval + 1)

    @property
    def can_be_drawn(self) -> bool:
        """Whether there are sequences to draw."""
        return self.high > self.low

    @property
    def _num_rows(self) -> int:
        return self._sequences.num_steps + self.spec.n_step

    def append(self, batch: RolloutTensors) -> None:
        """Store a rollout ``[T, B]`` with its recurrent states, over the oldest steps.

        An environment may be another one than before; see `Replay.append`.
        """
        assert batch.recurrent_state is not None, "the agent has no memory"
        first, T = self.num_stored, len(batch.reward)
        self.steps.append(batch)
        row = torch.arange(T, device=self.device)
        self._is_taken[(first + row) % self.spec.num_slots] = batch.valid
        sequences = batch.sequences(slice(0, T))
        assert sequences is not None
        interval = self._sequences.interval
        start = torch.arange(-first % interval, T, interval, device=self.device)
        state = batch.recurrent_state[start]
        if batch.previous is not None:
            state = torch.cat((state, batch.previous[start]), 2)
        state = state.masked_fill(sequences.is_first[start].unsqueeze(2), 0)
        self._state[(first + start) // interval % self.num_slots] = state.to(self._state.dtype)

    def draw_uniformly(self, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Numbers and environments of sequences, ``[num]`` int64 each, with replacement."""
        options: dict[str, Any] = {"generator": generator, "device": self.device}
        number = torch.randint(self.low, self.high, (num,), **options)
        return number, torch.randint(self.spec.num_envs, (num,), **options)

    def are_valid(self, number: Tensor, env: Tensor) -> Tensor:
        """Which sequences, of one shape with ``env``, have a step that is valid, bool."""
        step = self._learned(number)
        return self.steps.are_valid(step, env.expand_as(step)).any(0)

    def gather(self, number: Tensor, env: Tensor) -> SequenceBatch:
        """The sequences of these numbers and environments, ``[N]`` int64 each."""
        steps, (N, R) = self.steps, (len(number), self._num_rows)
        rows = torch.arange(R, device=self.device).unsqueeze(1)
        first = number * self._sequences.interval
        step = first + rows  # [R, N]
        learned = self._learned(number)  # [L, N]
        window = steps.window(learned, env.expand_as(learned))
        observation = steps.observations(step.flatten(), env.repeat(R))
        is_taken = self._is_taken[step % self.spec.num_slots, env]
        ended = steps.have_ended(step, env.expand_as(step)) | ~is_taken
        # Of row 0 the state says it.
        is_first = torch.cat((torch.zeros_like(ended[:1]), ended[:-1]))
        state = self._state[number % self.num_slots, env]
        size = self._sequences.state_size
        state, previous = state[:, :size], self._previous(step, env, state[:, size:])
        end_row = learned - first + window.length  # of the observation behind each return
        end_column = torch.arange(N, device=self.device).expand_as(learned)
        if steps.has_finals:
            finals = steps.finals(step, env.expand_as(step))
            # Of the burn-in none is learned from, and nothing comes after the last row.
            finals[-1] = finals[: self._sequences.burn_in] = -1
            final_row, source = (finals >= 0).nonzero(as_tuple=True)  # [M]; this asks the device
            final_column = N + torch.arange(len(source), device=self.device)
            observation = self._with_finals(observation, step, env, finals, final_row, source)
            is_first = torch.cat((is_first, is_first[:, source]), 1)
            is_first[final_row + 1, final_column] = False
            state = torch.cat((state, state[source]))
            if previous is not None:
                previous = torch.cat((previous, previous[:, source]), 1)
            columns = torch.full_like(step, -1)
            columns[final_row, source] = final_column
            end_column = end_column.where(window.final < 0, columns.gather(0, end_row - 1))
        return SequenceBatch(
            observation=observation,
            state=state,
            is_first=is_first,
            action=steps.actions(learned, env.expand_as(learned)),
            reward=window.reward,
            discount=window.discount,
            valid=window.valid,
            end=end_row * is_first.shape[1] + end_column,
            previous=None if previous is None else previous.masked_fill(is_first.unsqueeze(2), 0),
        )

    def _previous(self, step: Tensor, env: Tensor, first: Tensor) -> Tensor | None:
        """``[R, N, P]``, before what began episodes is left out; of row 0 ``first``, ``[N, P]``."""
        encode, steps = self._sequences.previous, self.steps
        if encode is None:
            return None
        before = step[:-1]
        env = env.expand_as(before)
        told = encode(steps.actions(before, env), steps.rewards(before, env))
        return torch.cat((first.unsqueeze(0), told))

    def _with_finals(
        self,
        observation: Any,
        step: Tensor,
        env: Tensor,
        finals: Tensor,
        final_row: Tensor,
        source: Tensor,
    ) -> Any:
        """Return ``[R * C, ...]``, with a column for each final observation."""
        R, N = step.shape
        at = final_row, source
        final = self.steps.observations(step[at] + 1, env[source], finals[at])
        number = torch.arange(len(source), device=self.device)

        def as_bytes(x: Tensor) -> Tensor:  # torch assigns no uint16 by index
            return x.unsqueeze(-1).view(torch.uint8)

        def widen(rows: Tensor, ends: Tensor) -> Tensor:
            given = rows.view(R, N, *rows.shape[1:])
            more = given[:, source]
            as_bytes(more)[final_row + 1, number] = as_bytes(ends)
            return torch.cat((given, more), 1).flatten(0, 1)

        return map_leaves(widen, observation, final)

    def _learned(self, number: Tensor) -> Tensor:
        """The steps ``[L, ...]`` to learn from of sequences of any one shape."""
        rows = torch.arange(self._sequences.length, device=self.device) + self._sequences.burn_in
        return number * self._sequences.interval + rows.view(-1, *[1] * number.ndim)

    def get_state(self) -> dict[str, Any]:
        """All of it, on the CPU."""
        own = {"state": self._state.cpu(), "is_taken": self._is_taken.cpu()}
        return {"steps": self.steps.get_state(), **own}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.steps.set_state(state["steps"])
        self._state.copy_(state["state"])
        self._is_taken.copy_(state["is_taken"])
