"""Runs that collect rollouts and learn from them: by turns, or both at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Any

import torch

from accel_rl.agents import RolloutTensors
from accel_rl.algos import Learner
from accel_rl.envs.clipped import clipped_share
from accel_rl.parallel import StoreSync
from accel_rl.samplers import ActionServer, SamplerError, SamplerState
from accel_rl.samplers.base import PolicyInput
from accel_rl.samplers.block import count_nothing
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.spaces import leaves_of
from accel_rl.system.states import decode_state, encode_state
from accel_rl.training.metrics import CLIPPED
from accel_rl.training.overlap import LAG, Overlapped
from accel_rl.training.run import Run
from accel_rl.training.torch_setup import learning_threads


class PullingServer(ActionServer):
    """An action server whose learner takes over the store's parameters within a rollout.

    It does so before the steps ``pull_steps``, ``2 * pull_steps`` and so on of each environment
    (Stooke and Abbeel 2018, arXiv:1803.02811, section 5.3), and, if ``learns_newest``, before it
    learns.
    """

    def pull_from(self, sync: StoreSync, pull_steps: int, *, learns_newest: bool = False) -> None:
        self._sync, self._pull_steps = sync, pull_steps
        self._learns_newest = learns_newest

    def __call__(self, step: PolicyInput) -> Any:
        is_first = step.env_slice.start == 0  # of the groups that take this step
        if step.t > 0 and step.t % self._pull_steps == 0 and is_first:
            self._sync.pull()
        return super().__call__(step)

    def finish(self) -> RolloutTensors:
        batch = super().finish()
        if self._learns_newest:
            self._sync.pull()
        return batch


@dataclass(kw_only=True, eq=False)
class RolloutRun(Run):
    """A run of an algorithm that learns from rollouts: any but GA3C."""

    sampler: RolloutSampler
    learner: Learner
    server: ActionServer  # acts, and returns the rollout
    # collects a rollout while the one before is learned from; None: by turns
    overlapped: Overlapped | None = None
    num_threads: int = 1  # threads of torch during updates in this thread
    is_stopping: bool = False

    def iterate(self) -> None:
        """Collect, update, record, until ``planned_steps`` are taken or a stop is asked for."""
        records, clock, overlapped = self.records, self.records.device_clock, self.overlapped
        server, learner = overlapped or self.server, overlapped or self.learner
        spec = self.sampler.env_spec
        if overlapped is not None:
            overlapped.begin(self.goes_on)
        self.evaluate_if_due()  # a stop may have cut off the last one
        while not self.is_over() or self.is_ahead:
            clock.act()
            if overlapped is None:
                self.sampler.collect(self.server)
            else:
                overlapped.collect()
            steps, episodes = self.count_steps(), self.sampler.take_episodes()
            with self.learning():
                batch, rollout = server.finish(), self.sampler.rollout
                clipping = clipped_share(spec.action, rollout.action, rollout.valid)
                progress = self.config.progress(records.steps)
                metrics = dict[str, Any](learner.update(batch, progress, steps))
            if clipping is not None:
                metrics[CLIPPED] = clipping
            records.after_update(steps, metrics, episodes, self.sampler.times)
            self.evaluate_if_due()

    @property
    def is_ahead(self) -> bool:
        """True if a rollout was collected and not yet learned from."""
        return self.overlapped is not None and self.overlapped.is_ahead

    def is_over(self) -> bool:
        """Return whether all steps are taken or a stop is asked for."""
        if self.records.steps >= self.config.planned_steps:
            return True
        self.is_stopping = self.is_stopped()
        return self.is_stopping

    def goes_on(self, steps: int) -> bool:
        """Return whether the next rollout may be collected before ``steps`` are recorded."""
        is_last = steps >= self.config.planned_steps or self.is_stopping
        return not is_last and not self.records.saves_at(steps)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Use the learner's threads within; time without sampling counts as learning."""
        records, before, began = self.records, self.sampler.times, perf_counter()
        core = thread_time()
        records.is_learning = True
        records.device_clock.begin()
        with nullcontext() if self.overlapped else learning_threads(self.num_threads):
            yield  # with overlap another thread learns, and this one samples
        records.device_clock.end()
        now = self.sampler.times
        sampling = now.waiting - before.waiting + now.policy - before.policy
        records.learning_seconds += perf_counter() - began - sampling
        if self.overlapped is None and self.device.type == "cpu":
            records.core_seconds += thread_time() - core
        records.is_learning = False

    def give_options(self, options: Mapping[str, Any]) -> None:
        if self.team.ranks.size > 1:
            super().give_options(options)
        self.sampler.env_options = dict(options)

    @property
    def extra_metrics(self) -> tuple[str, ...]:
        clips = any(leaf.is_clipped for _, leaf in leaves_of(self.sampler.env_spec.action))
        return (*[LAG] * (self.overlapped is not None), *[CLIPPED] * clips)

    def start(
        self, saved: Mapping[str, Any] | None, look: Callable[[int], object] = count_nothing
    ) -> None:
        state = None
        if saved is not None and saved["sampler"] is not None:
            state = SamplerState(**decode_state(saved["sampler"].numpy().tobytes()))
        self.sampler.start(state, look)
        if saved is not None and state is not None:
            self.server.set_state(saved["recurrent_state"])

    def _sampler_state(self) -> dict[str, Any]:
        if not self.sampler.is_running or self.is_ahead:
            return {}
        try:
            encoded = encode_state(self.sampler.get_state()._asdict())
        except SamplerError as error:
            return {"failure": error}
        return {
            "sampler": torch.frombuffer(bytearray(encoded), dtype=torch.uint8),
            "recurrent_state": self.server.get_state(),
        }

    def close(self, *, waits: bool = True) -> None:
        if self.overlapped is not None:
            self.overlapped.close()
        if waits:
            self.server.close()
        self.sampler.close()
