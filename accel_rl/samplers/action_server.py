"""The action server: turns a sampler's observations into actions, and its rollout into tensors.

On the CPU everything happens in the sampler's own arrays. On a GPU each observation crosses once:
its rows live on the device, where inference and the learner read the same ones. To sample on while
the learner still reads, the rows are there twice, and take turns; on the CPU the one rollout is
copied when it is complete.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accel_rl.agents import Agent, HostFlags, Normalizer, RolloutTensors
from accel_rl.rollout import Rollout, RolloutSpec, carve, layout_bytes
from accel_rl.samplers.acting_graphs import (
    MOST_ROW_GRAPHS,
    ActingGraphs,
    without_inference_mode,
)
from accel_rl.samplers.actors import Actor, Kept, Remembering
from accel_rl.samplers.base import PolicyInput, noise_shape
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.spaces import Leaf, as_bytes, map_leaves, tensor_views
from accel_rl.system.registration import register, unregister

_SMALL_FIELDS = ("action", "reward", "terminated", "truncated", "valid")


class ActionServer:
    """A policy for ``sampler.collect`` that runs an agent, and returns the rollout as tensors.

        sampler.collect(server)
        metrics = learner.update(server.finish(), progress)

    It uses the agent's parameters at the time of each call, and keeps the recurrent state of each
    environment if the agent has one. Close it before the sampler, or use it in ``with`` inside the
    sampler's ``with``: on a GPU it registers the sampler's memory.

    Args:
        agent: the agent that chooses actions.
        sampler: the sampler that will call this policy.
        device: device of the agent's network and of the returned tensors.
        keeps_rollout: True: tensors that `finish` returns stay valid until the next `finish`.
            False: on the CPU, until the next ``collect``.

    Raises:
        RuntimeError: the shared memory cannot be registered with the CUDA driver.
    """

    def __init__(
        self,
        agent: Agent,
        sampler: RolloutSampler,
        device: torch.device,
        *,
        keeps_rollout: bool = False,
    ) -> None:
        self._agent = agent
        self.num_noise = agent.num_noise
        self._normalizer: Normalizer | None = None  # of the rollout that is collected
        self._graphs: ActingGraphs | None = None
        self._sizes = T, B = sampler.rollout.action.shape[:2]
        self._keeps_rollout = keeps_rollout
        self._extras: dict[str, Kept] = {}
        self._actor = Actor(agent)
        if agent.remembers:
            self._actor = Remembering(agent, T, B, device, keeps_rollout)
        self._rows: _SharedRows | _DeviceRows = (
            _SharedRows(sampler, keeps_rollout)
            if device.type == "cpu"
            else _DeviceRows(sampler, device, keeps_rollout, agent.num_noise)
        )
        if agent.graphs is not None and isinstance(self._rows, _DeviceRows):
            # What is remembered lies in rows, so that one graph cannot stand for all of them.
            if not agent.remembers or self._rows.num_graphs <= MOST_ROW_GRAPHS:
                self._graphs = ActingGraphs(agent, agent.graphs)
                self._actor.choose = without_inference_mode(self._actor.choose)

    def __call__(self, step: PolicyInput) -> Any:
        """Choose actions.

        Args:
            step: the observations of ``n`` environments.

        Returns:
            Actions ``[n, ...]``.
        """
        if step.t == 0:
            self._normalizer = self._agent.normalizer
        kind = self._actor.prepare(step)
        if self._graphs is not None:
            return self._replay(self._graphs, step, kind)
        action, extras = self._actor.act(*self._rows.read(step), step, self._rows)
        self._keep(extras, step.t, step.env_slice)
        return self._rows.answer(step, action)

    def _replay(self, graphs: ActingGraphs, step: PolicyInput, kind: Hashable) -> Any:
        """Act as `__call__` does, with one graph for all that the device does in a step."""
        rows, env_slice = self._rows, step.env_slice
        assert isinstance(rows, _DeviceRows)
        is_carried, staged = rows.stage(step), None
        if rows.num_graphs > MOST_ROW_GRAPHS or not rows.is_registered:
            staged = rows.load_and_stage(step, is_carried)

        def act() -> tuple[()]:
            row = rows.load(step, is_carried) if staged is None else staged
            action, extras = self._actor.act(*rows.seen(row, env_slice), step, rows)
            rows.send(env_slice, action)
            self._keep(extras, step.t if staged is None else rows.number(env_slice), env_slice)
            return ()

        place: Hashable = rows.address
        if staged is None:  # else the graph stands for all rows
            place = step.t, is_carried, rows.address, kind
        graphs.run((env_slice.start, env_slice.stop, place), act)
        return rows.wait(env_slice)

    def _keep(self, extras: Mapping[str, Tensor], t: int | Tensor, env_slice: slice) -> None:
        for name, values in extras.items():
            if name not in self._extras:
                given = *self._sizes, values
                self._extras[name] = Kept(*given, keeps_rollout=self._keeps_rollout)
            self._extras[name].keep(values, t, env_slice)

    def finish(self) -> RolloutTensors:
        """Return the rollout that ``collect`` has completed.

        Returns:
            Tensors that are valid until the next ``collect``; with ``keeps_rollout``, until the
            next `finish`.
        """
        batch = self._rows.finish()
        extras: dict[str, Any] = {name: kept.finish() for name, kept in self._extras.items()}
        extras |= self._actor.finish(batch.reward[-1])
        return batch._replace(normalizer=self._normalizer, **extras)

    def get_state(self) -> Tensor | None:
        """Return the recurrent states between two rollouts; None if the agent has no memory."""
        return self._actor.get_state()

    def set_state(self, state: Tensor | None) -> None:
        """Continue with the recurrent states of another server, before the first rollout.

        Args:
            state: the value that `get_state` returned; None changes nothing.
        """
        if state is not None:
            self._actor.set_state(state)

    def close(self) -> None:
        """Release the sampler's memory. A second call does nothing."""
        self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _SharedRows:
    """On the CPU: tensors over the sampler's own arrays, nothing is copied unless it is kept."""

    def __init__(self, sampler: RolloutSampler, keeps_rollout: bool) -> None:
        self._rollout = rollout = sampler.rollout
        self._spec = sampler.rollout_spec
        names = ("observation", *_SMALL_FIELDS)
        self._shared = {name: _raw(getattr(rollout, name)) for name in names}
        self._kept = self._shared
        if keeps_rollout:
            self._kept = {name: torch.zeros_like(each) for name, each in self._shared.items()}

    def read(self, step: PolicyInput) -> tuple[Any, Tensor]:
        observation = tensor_views(self._spec.observation, step.observation)
        return observation, torch.from_numpy(step.noise)

    def read_is_first(self, step: PolicyInput) -> Tensor:
        return torch.from_numpy(step.is_first)

    def read_reward(self, step: PolicyInput) -> Tensor:
        return torch.from_numpy(step.reward)

    def answer(self, step: PolicyInput, action: Any) -> Any:
        return _arrays(action)

    def finish(self) -> RolloutTensors:
        if self._kept is not self._shared:
            for name, kept in self._kept.items():
                kept.copy_(self._shared[name])
        return _tensors(self._spec, {**self._kept, **_final_observations(self._rollout)})

    def close(self) -> None:
        pass


class _DeviceRows:
    """On a GPU: observation rows on the device, filled group by group from registered memory.

    Where it could not be registered, the host waits for each copy, which no graph can hold.

    Everything runs in order on the device's current stream: a group's copy, its inference and the
    copy of its actions back. The host waits once a call, for the actions. That wait also makes it
    safe to use the staging buffers again in the next call: all earlier copies are done.

    Row 0 is row T of the rollout before, which the device has already; it is copied there. Where
    environments are reset between rollouts, or a lost one was replaced meanwhile, it is sent.

    Where a rollout is kept, another stream may read it, which must wait for this one's `finish`,
    and for which this one must wait before the `finish` after that.
    """

    def __init__(
        self, sampler: RolloutSampler, device: torch.device, keeps_rollout: bool, num_noise: int = 1
    ) -> None:
        rollout = sampler.rollout
        num_envs = rollout.action.shape[1]
        self._sampler = sampler
        self._spec = sampler.rollout_spec
        self._generation = 0
        self._rollout = rollout
        self._device = device
        self._row_zero_follows = sampler.config.reset_policy == "immediate"
        # Where the device's row T is the next rollout's row 0.
        self._is_carried = np.zeros(num_envs, np.bool_)
        self._follows = True  # row 0, in every group that has read it
        self._shared = _raw(rollout.observation)
        self._observation = torch.empty_like(self._shared, device=device)
        self._staging: Tensor | None = None
        self._before = self._observation  # rows of the rollout before
        if keeps_rollout:
            self._before = torch.empty_like(self._observation)
        shape = noise_shape((num_envs,), num_noise)
        self._noise = torch.empty(shape, dtype=torch.float64, pin_memory=True)
        self._number = torch.empty(num_envs, dtype=torch.int64, pin_memory=True)  # of the row
        self._is_first = torch.empty(num_envs, dtype=torch.bool, pin_memory=True)
        self._reward = torch.empty(num_envs, pin_memory=True)
        row = _raw(rollout.action)[0]
        self._action = torch.empty(row.shape, dtype=row.dtype, pin_memory=True)
        self._packed = torch.empty_like(row, device=device)  # of a mapping
        self._small = _SmallFields(rollout, device, 2 if keeps_rollout else 1)
        # Last: if anything fails above, nothing stays registered. The small arrays share pages,
        # which may be registered once, so these go through staging buffers instead.
        self.is_registered = register(self._shared, device)

    def read(self, step: PolicyInput) -> tuple[Any, Tensor]:
        return self.seen(self.load(step, self.stage(step)), step.env_slice)

    def stage(self, step: PolicyInput) -> bool:
        """Do the host's part of `read`. Return whether the device has the row already."""
        env_slice = step.env_slice
        is_same = self._generation == self._sampler.generation
        is_carried = bool(step.t == 0 and is_same and self._is_carried[env_slice].all())
        if is_carried:
            self._is_carried[env_slice] = False
        else:
            self._follows &= step.t > 0
        self._noise[env_slice].numpy()[:] = step.noise
        self._number[env_slice.start] = step.t
        self._is_first[env_slice].numpy()[:] = step.is_first
        self._reward[env_slice].numpy()[:] = step.reward
        return is_carried

    def load(self, step: PolicyInput, is_carried: bool) -> Tensor:
        """Have the device fill the row, ``[n, ...]``."""
        row = self._observation[step.t, step.env_slice]
        if is_carried:
            row.copy_(self._before[-1, step.env_slice])
        else:
            row.copy_(_raw(step.observation), non_blocking=True)
        return row

    def load_and_stage(self, step: PolicyInput, is_carried: bool) -> Tensor:
        """Call `load`, and return a copy in memory that is the same for every row."""
        if self._staging is None:
            self._staging = torch.empty_like(self._observation[0])
        staged = self._staging[step.env_slice]
        staged.copy_(self.load(step, is_carried))
        return staged

    def seen(self, row: Tensor, env_slice: slice) -> tuple[Any, Tensor]:
        """Return observation and noise of a ``row`` of `load`."""
        noise = self._noise[env_slice].to(self._device, non_blocking=True)
        return tensor_views(self._spec.observation, row), noise

    def number(self, env_slice: slice) -> Tensor:
        """The number of the row that was staged, ``[1]``, on the device."""
        return self._number[env_slice][:1].to(self._device, non_blocking=True)

    @property
    def address(self) -> int:
        """Address of the rollout that is collected."""
        return self._observation.data_ptr()

    @property
    def num_graphs(self) -> int:
        """Rows and groups of all rollouts that are kept."""
        num_rollouts = 1 if self._before is self._observation else 2
        return len(self._observation) * self._sampler.config.num_groups * num_rollouts

    def read_is_first(self, step: PolicyInput) -> Tensor:
        return self._is_first[step.env_slice].to(self._device, non_blocking=True)

    def read_reward(self, step: PolicyInput) -> Tensor:
        return self._reward[step.env_slice].to(self._device, non_blocking=True)

    def answer(self, step: PolicyInput, action: Any) -> Any:
        self.send(step.env_slice, action)
        return self.wait(step.env_slice)

    def send(self, env_slice: slice, action: Any) -> None:
        """Have the device send actions to the host."""
        pinned, space = self._action[env_slice], self._spec.action
        if not isinstance(space, Leaf):
            packed = self._packed[env_slice]
            map_leaves(Tensor.copy_, tensor_views(space, packed), action)
            action = packed
        pinned.copy_(action, non_blocking=True)

    def wait(self, env_slice: slice) -> Any:
        """The actions that were sent."""
        torch.cuda.current_stream(self._device).synchronize()  # the only one of the step
        return _arrays(tensor_views(self._spec.action, self._action[env_slice]))

    def finish(self) -> RolloutTensors:
        self._observation[-1].copy_(self._shared[-1], non_blocking=True)
        self._is_carried[:] = self._row_zero_follows
        self._generation = self._sampler.generation
        small = self._small.send(self._rollout)
        # From pageable memory, so this waits; but there is none except after a truncation.
        finals = _final_observations(self._rollout)
        for name, tensor in finals.items():
            small[name] = tensor.to(self._device)
        self._observation, self._before = self._before, self._observation
        batch = _tensors(self._spec, {"observation": self._before, **small})
        return batch._replace(host=self._flags(finals), stays=True)

    def _flags(self, finals: dict[str, Tensor]) -> HostFlags:
        follows, self._follows = self._follows, True
        return HostFlags(
            terminated=self._small.host["terminated"],
            truncated=self._small.host["truncated"],
            valid=self._small.host["valid"],
            final_step=finals["final_step"].numpy(),
            final_env=finals["final_env"].numpy(),
            follows=follows,
        )

    def close(self) -> None:
        if self.is_registered:
            self.is_registered = False
            with suppress(RuntimeError):  # the device has failed, which has been told
                torch.cuda.current_stream(self._device).synchronize()
            unregister(self._shared)


class _SmallFields:
    """The small fields of a rollout, which are copied to the device in one call.

    Attributes:
        host: Copies in pinned memory, by field.
    """

    def __init__(self, rollout: Rollout, device: torch.device, num_kept: int) -> None:
        fields = {name: _raw(getattr(rollout, name)).numpy() for name in _SMALL_FIELDS}
        layout = {name: (each.shape, each.dtype) for name, each in fields.items()}
        self._pinned = torch.empty(layout_bytes(layout), dtype=torch.uint8, pin_memory=True)
        self.host = carve(layout, self._pinned.numpy())
        begin = self._pinned.data_ptr()
        self._kept = []
        for _ in range(num_kept):
            own = torch.empty_like(self._pinned, device=device)
            views = {}
            for name, array in self.host.items():
                first = array.ctypes.data - begin
                part, kind = own[first : first + array.nbytes], torch.from_numpy(array)
                views[name] = part.view(kind.dtype).view(kind.shape)
            self._kept.append((own, views))

    def send(self, rollout: Rollout) -> dict[str, Tensor]:
        """Return tensors of ``rollout``, by field. They replace those of ``num_kept`` calls ago."""
        for name, staged in self.host.items():
            staged[...] = _raw(getattr(rollout, name)).numpy()
        own, views = self._kept[0]
        self._kept.append(self._kept.pop(0))
        own.copy_(self._pinned, non_blocking=True)
        return views


def _raw(array: NDArray[Any]) -> Tensor:
    """The tensor over an array, or over the bytes of structs, ``[..., itemsize]``."""
    return torch.from_numpy(array if array.dtype.names is None else as_bytes(array))


def _tensors(spec: RolloutSpec, raw: dict[str, Tensor]) -> RolloutTensors:
    """The rollout, with views of the leaves of mappings."""
    tensors: dict[str, Any] = dict(raw)
    for name in ("observation", "final_observation"):
        tensors[name] = tensor_views(spec.observation, raw[name])
    tensors["action"] = tensor_views(spec.action, raw["action"])
    return RolloutTensors(**tensors)


def _arrays(action: Any) -> Any:
    return map_leaves(Tensor.numpy, action)


def _final_observations(rollout: Rollout) -> dict[str, Tensor]:
    """Return copies of the observations that end truncated, not terminated episodes."""
    slot, env = np.nonzero(rollout.final_step >= 0)
    step: NDArray[Any] = rollout.final_step[slot, env]
    return {
        "final_observation": _raw(rollout.final_observation[slot, env]),
        "final_step": torch.from_numpy(step),
        "final_env": torch.from_numpy(env),
    }
