"""What all learners with a replay do: store rollouts, count updates, save and restore."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from accel_rl.agents import Agent, RolloutTensors
from accel_rl.algos.generator import restore
from accel_rl.algos.replay import Replay, ReplaySpec, SequenceReplay, Transitions
from accel_rl.algos.replay.spec import replay_device
from accel_rl.algos.replay_config import PACE_METRICS, Pace, ReplayConfig, sent
from accel_rl.algos.update import Update
from accel_rl.parallel import ALONE, Exchange, Ranks


class ReplayLearner(ABC):
    """Base of learners with a replay. A subclass defines `learn`, one optimizer step.

    Args:
        agent: the agent whose parameters learn.
        config: the options.
        exchange: holds the flat parameters of ``agent.model`` and applies the gradients.
        replay_spec: content of the replay, of `ReplayConfig.replay_spec`.
        seed: seed of the draws from the replay, and of `noise`.
        ranks: which of the run's learners this is; their steps count together.

    Attributes:
        agent: the agent whose parameters learn.
        config: the options.
        device: device of the parameters.
        batch_size: samples of this learner in each update.
        replay: the replay.
        pace: counts the steps and the updates that are due.
        optimizer: makes the optimizer steps.
        gathers: True if graphs of updates gather what is drawn from the replay.
        metric_names: names of all metrics that `update` may return. A subclass adds its own.

    Raises:
        ValueError: the replay does not fit the memory of its device, or options do not fit.
    """

    def __init__(
        self,
        agent: Agent,
        config: ReplayConfig,
        exchange: Exchange,
        replay_spec: ReplaySpec,
        seed: int,
        ranks: Ranks = ALONE,
    ) -> None:
        self.agent, self.config = agent, config
        self._exchange = exchange
        self.device = exchange.parameters.parameter.device
        self.batch_size = config.batch_size // exchange.num_sharing
        config.check_replay(replay_spec, ranks.size)
        kind = Replay if replay_spec.sequences is None else SequenceReplay
        replay_spec = replace(replay_spec, batch_size=self.batch_size)
        on = replay_device(replay_spec, self.device)
        self.replay: Replay | SequenceReplay = kind(replay_spec, on, ranks.size, ranks.local_size)
        self._generator = torch.Generator(on).manual_seed(seed)
        self._seed = seed
        self._noise: torch.Generator | None = None
        self.pace = Pace(config, ranks.size, exchange.num_sharing)
        # Batches of sequences have shapes that change, so that acting alone is recorded.
        graphs = agent.graphs if replay_spec.sequences is None else None
        self.optimizer = Update(config, exchange, graphs)
        # A graph gathers where the replay is; the numbers of what it gathers are drawn before it.
        self.gathers = graphs is not None and self.replay.device == self.device
        self.metric_names: tuple[str, ...] = (*PACE_METRICS, *self.optimizer.names)

    def get_state(self) -> dict[str, Any]:
        """Return what a checkpoint holds besides parameters and the state of their rule."""
        state = {
            "generator": self._generator.get_state(),
            **self.pace.get_state(),
            **self.optimizer.get_state(),
        }
        if self._noise is not None:
            state["noise"] = self._noise.get_state()
        if self.config.save_replay:
            state["replay"] = self.replay.get_state()
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue. Without a replay in ``state``, it first waits ``learning_starts`` more steps.

        Args:
            state: the value that `get_state` returned, perhaps in an older version.
        """
        if "generator" in state:
            restore(self._generator, state["generator"])
        if "noise" in state:
            self._noise = torch.Generator(self.device)
            restore(self._noise, state["noise"])
        self.optimizer.set_state(state)
        if "replay" in state:
            self.replay.set_state(state["replay"])
        self.pace.set_state(state, has_replay=self.replay.num_stored > 0)

    def update(
        self, batch: RolloutTensors, progress: float, steps: int | None = None
    ) -> dict[str, Tensor]:
        """Store a rollout, and learn as many times as its steps call for.

        Args:
            batch: the rollout, ``[T, B]``.
            progress: completed share of the schedules, in [0, 1].
            steps: steps of all learners so far, this rollout's included; None: there is no other
                learner.

        Returns:
            Means over the optimizer steps, 0-d tensors on the learner's device, without waiting for
            it; nothing where there was no such step.
        """
        batch = self.config.limited(batch)
        self.store(batch.map(lambda field: field.to(self.replay.device)))
        due = self.pace.take(batch.reward.numel(), steps, self.replay.can_be_drawn)
        for _ in range(due):
            self.learn(progress)
        values = self.adjust() or {}
        return self.optimizer.take(**self.pace.metrics(self.device, **values)) if due else {}

    def store(self, batch: RolloutTensors) -> None:
        """Add a rollout, ``[T, B]`` on the device of the replay."""
        self.replay.append(batch)

    @abstractmethod
    def learn(self, progress: float) -> None:
        """Make one step of `optimizer`, with what `draw` returns for example.

        Args:
            progress: completed share of the schedules, in [0, 1].
        """

    def adjust(self) -> dict[str, Tensor] | None:
        """Change what follows from the number of steps, after the optimizer steps of a rollout.

        Returns:
            Further metrics, 0-d tensors of the host; None: there are none.
        """
        return None

    def draw(self) -> Transitions:
        """Return ``batch_size`` transitions on the learner's device, all equally likely.

        They are single steps, without priorities.
        """
        assert isinstance(self.replay, Replay)
        at = self.replay.draw_uniformly(self.batch_size, self._generator)
        return sent(self.replay.gather(*at), self.device)

    def noise(self, *shape: int) -> Tensor:
        """Return standard normal numbers on the learner's device; checkpoints go on with them."""
        if self._noise is None:
            self._noise = torch.Generator(self.device).manual_seed(self._seed)
        return torch.randn(shape, generator=self._noise, device=self.device)

    def autocast(self) -> torch.autocast:
        """Return the context in which products have the number format of ``precision``."""
        is_short = self.config.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=is_short)
