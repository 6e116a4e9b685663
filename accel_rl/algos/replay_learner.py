"""What all learners with a replay do: store rollouts, count updates, save and restore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from accel_rl.agents import RolloutTensors
from accel_rl.algos.learner import Learner, restore
from accel_rl.algos.replay import Replay, ReplaySpec, SequenceReplay
from accel_rl.algos.replay.spec import replay_device
from accel_rl.algos.replay_config import PACE_METRICS, Pace, sent
from accel_rl.algos.specs import LearnerSpec
from accel_rl.graphs import Fixed, Graphs
from accel_rl.parallel import GradientSync


class ReplayLearner(Learner):
    """Base of learners with a replay; `Learner` has the arguments.

    A subclass defines `loss` for a batch of `Transitions`, or `learn`, which makes one optimizer
    step. The seed of the task is that of the draws from the replay, and of `noise`.

    Attributes:
        device: device of the parameters.
        batch_size: samples of this learner in each update.
        replay: the replay.
        pace: counts the steps and the updates that are due.

    Raises:
        ValueError: the replay does not fit the memory of its device, or options do not fit.
    """

    def __init__(self, agent: Any, config: Any, sync: GradientSync, task: LearnerSpec) -> None:
        super().__init__(agent, config, sync, task)
        ranks = task.ranks
        self.batch_size: int = config.batch_size // sync.num_sharing
        spec: ReplaySpec = config.replay_spec(task, agent)
        config.check_replay(spec, ranks.size)
        self.replay = self.make_replay(replace(spec, batch_size=self.batch_size))
        self._generator = torch.Generator(self.replay.device).manual_seed(task.seed)
        self._at = Fixed(None)
        self._noise: torch.Generator | None = None
        self.pace = Pace(config, ranks.size, sync.num_sharing)
        self.metric_names = (*self.metrics, *PACE_METRICS, *self.optimizer.names)

    @property
    def graphs(self) -> Graphs | None:
        """None with a memory: batches of sequences have shapes that change."""
        return None if self.agent.remembers else super().graphs

    def make_replay(self, spec: ReplaySpec) -> Replay | SequenceReplay:
        """Return the replay. A subclass may make another one.

        Args:
            spec: content of the replay.
        """
        kind = Replay if spec.sequences is None else SequenceReplay
        ranks = self.task.ranks
        return kind(spec, replay_device(spec, self.device), ranks.size, ranks.local_size)

    def get_state(self) -> dict[str, Any]:
        """Return what a checkpoint holds besides parameters and the state of their rule."""
        state = {
            "generator": self._generator.get_state(),
            **self.pace.get_state(),
            **super().get_state(),
        }
        if self._noise is not None:
            state["noise"] = self._noise.get_state()
        if self.config.save_replay:
            state["replay"] = self.replay.get_state()
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue. Without a replay in ``state``, it first waits ``learning_starts`` more steps.

        Args:
            state: the value that `get_state` returned.
        """
        if "generator" in state:
            restore(self._generator, state["generator"])
        if "noise" in state:
            self._noise = torch.Generator(self.device)
            restore(self._noise, state["noise"])
        super().set_state(state)
        if "replay" in state:
            self.replay.set_state(state["replay"])
        self.pace.set_state(state, has_replay=self.replay.num_stored > 0)

    def update(
        self, batch: RolloutTensors, progress: float, steps: int | None = None
    ) -> dict[str, Tensor]:
        """Store a rollout, and learn as many times as its steps call for; see `Learner.update`.

        Returns:
            Means over the optimizer steps; nothing if there was no such step.
        """
        batch = self.config.limited(batch)
        if batch.reward.device != self.replay.device:
            batch = batch.map(lambda field: field.to(self.replay.device))
        self.store(batch)
        due = self.pace.take(batch.reward.numel(), steps, self.replay.can_be_drawn)
        for _ in range(due):
            self.learn(progress)
        values = self.adjust() or {}
        return (
            self.optimizer.take_metrics(**self.pace.metrics(self.device, **values)) if due else {}
        )

    def store(self, batch: RolloutTensors) -> None:
        """Add a rollout, ``[T, B]`` on the device of the replay."""
        self.replay.append(batch)

    def learn(self, progress: float) -> None:
        """Make one optimizer step. Default: with the `loss` of what `draw` returns.

        Args:
            progress: completed share of the schedules, in [0, 1].
        """
        self.optimizer.minimize(self.loss, self.draw(), lr=self.learning_rate(progress))

    def adjust(self) -> dict[str, Tensor] | None:
        """Change what follows from the number of steps, after the optimizer steps of a rollout.

        Returns:
            Further metrics, 0-d tensors of the host; None: there are none.
        """
        return None

    def draw(self) -> Any:
        """Return ``batch_size`` transitions, all equally likely, as an input of `minimize`.

        They are single steps, without priorities. The loss gets them as `Transitions` on the
        learner's device.
        """
        assert isinstance(self.replay, Replay)
        at = self.replay.draw_uniformly(self.batch_size, self._generator)
        return self.gathered(*at, stays=True)

    def gathered(self, step: Tensor, env: Tensor, *, stays: bool = False) -> Any:
        """Return steps of the replay as an input of `minimize`.

        Args:
            step: numbers of the steps, ``[N]`` int64.
            env: their environments, ``[N]`` int64.
            stays: whether these tensors are in the same memory each time.
        """
        if isinstance(self.replay, Replay) and self.replay.device == self.device:
            if self.graphs is None:
                return self.replay.gather(step, env)
            # A graph gathers. How it does depends on whether there are final observations.
            at = (step, env) if stays else self._at.hold((step, env)).tree
            return Fixed(at, self.replay.gather, self.replay.has_finals)
        return sent(self.replay.gather(step, env), self.device)

    def noise(self, *shape: int) -> Tensor:
        """Return standard normal numbers on the learner's device; checkpoints go on with them."""
        if self._noise is None:
            self._noise = torch.Generator(self.device).manual_seed(self.task.seed)
        return torch.randn(shape, generator=self._noise, device=self.device)

    def autocast(self) -> torch.autocast:
        """Return the context in which products have the number format of ``precision``."""
        is_short = self.config.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=is_short)
