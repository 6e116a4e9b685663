"""Settings of algorithms that learn from a replay, and how many updates the steps call for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from accel_rl.agents import Agent, RolloutTensors
from accel_rl.algos.learner import LearnerConfig
from accel_rl.algos.optimizer import as_metric
from accel_rl.algos.replay import ReplaySpec, SequenceBatch, Transitions, send
from accel_rl.algos.specs import Batch, LearnerSpec
from accel_rl.options import option, require
from accel_rl.spaces import map_leaves


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(LearnerConfig):
    """Options of a replay and of the batches drawn from it.

    Steps are those of all environments together.

    Raises:
        ValueError: a value is out of range, or options do not fit each other.
    """

    cheaper: ClassVar[str] = "a smaller training_intensity, or a GPU"

    batch_size: int = option(32, common=True)
    """Transitions in one update."""
    training_intensity: float = option(8.0, common=True)
    """Average number of times each step is used: updates * batch_size / steps."""
    learning_starts: int = option(50_000, common=True)
    """Steps before the first update."""
    buffer_size: int = option(1_000_000, common=True)
    """Steps that the replay holds, rounded up to a multiple of num_envs."""
    save_replay: bool = option(False, "engine")
    """Save the replay in checkpoints.
    While a checkpoint is written, it takes the memory of the replay once more. false: a resumed run
    fills the replay again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "above 0", lambda value: value > 0, "training_intensity")
        require(self, "at least 1", lambda value: value >= 1, "batch_size", "buffer_size")
        require(self, "at least 0", lambda value: value >= 0, "learning_starts")
        if self.learning_starts > self.buffer_size:
            raise ValueError(
                f"learning_starts={self.learning_starts} is more than the replay holds, "
                f"buffer_size={self.buffer_size}; use a smaller learning_starts or a larger replay"
            )

    @property
    def return_steps(self) -> int:
        """Rewards in a return."""
        return 1

    def replay_spec(self, task: LearnerSpec, agent: Agent) -> ReplaySpec:
        """Return what the replay of one learner holds.

        Args:
            task: the part of the run that the learner has.
            agent: the agent of the learner.

        Raises:
            ValueError: The replay does not fit the rollouts of all learners together.
        """
        env, num_learners = task.env, task.ranks.size
        whole = ReplaySpec(  # checked as such, since the options are of all learners together
            size=self.buffer_size,
            num_envs=task.num_envs * num_learners,
            horizon=task.horizon,
            observation=env.observation,
            action=env.action,
            frame_stack=env.frame_stack,
            n_step=self.return_steps,
            gamma=self.gamma,
        )
        return replace(whole, size=-(-whole.size // num_learners), num_envs=task.num_envs)

    def check_replay(self, spec: ReplaySpec, num_learners: int) -> None:
        """Raise ValueError if learning begins before one learner's replay can be drawn from."""
        whole = replace(spec, num_envs=spec.num_envs * num_learners, size=spec.size * num_learners)
        if self.learning_starts < whole.fewest:
            raise ValueError(
                f"learning_starts is {self.learning_starts}; with {whole.needs} it must be at "
                f"least {whole.fewest}, so that there is something to learn from"
            )

    def check_run(self, run: Any) -> None:
        """Check that the run learns.

        Raises:
            ValueError: It does not.
        """
        if run.total_steps <= self.learning_starts:
            raise ValueError(
                f"total_steps={run.total_steps} ends before learning begins, after learning_starts="
                f"{self.learning_starts}; use more steps or a smaller learning_starts"
            )

    def batches(self, sampler: Any) -> dict[str, Batch]:
        """Return the batches that learners in step must be able to divide."""
        return {"batch_size": Batch(self.batch_size)}

    def limited(self, batch: RolloutTensors) -> RolloutTensors:
        """Return ``batch`` with time limits as ends, if they are to be."""
        if self.bootstrap_on_truncation:
            return batch
        ended, host = batch.terminated | (batch.truncated & batch.valid), batch.host
        if host is not None:
            host = host._replace(terminated=host.terminated | (host.truncated & host.valid))
        return batch._replace(terminated=ended, host=host).without_finals()


def with_small_replay(config: ReplayConfig, sampler: Any, frame_stack: int) -> ReplayConfig:
    """Return settings with a small replay, from which learning begins soon, to try out a run.

    A replay that is too small or that learning begins too early for stays so.
    """
    fewest = (sampler.horizon + config.return_steps + frame_stack) * sampler.num_envs
    size, start = min(config.buffer_size, fewest), min(config.learning_starts, fewest)
    return replace(config, buffer_size=size, learning_starts=start)


class Pace:
    """Counts updates from steps, so that the training intensity holds exactly."""

    def __init__(self, config: ReplayConfig, num_learners: int, num_sharing: int) -> None:
        self._config = config
        self._num_learners = num_learners
        self._num_sharing = num_sharing
        self.steps = self._steps_before = 0  # of all learners, and before the last rollout
        self._begin = config.learning_starts  # steps after which it learns
        self._first = config.learning_starts  # after which it learned, or will, for the first time
        self._learning_steps = 0  # since then: this learner's, times the number of learners
        self._num_updates = 0  # since then

    @property
    def awaits_first(self) -> bool:
        """Whether the first update of all is still to come, so that actions may be random."""
        return self.steps < self._first

    def take(self, num_steps: int, steps: int | None, can_be_drawn: bool) -> int:
        """Return how many updates are due.

        Args:
            num_steps: Steps of this learner that have come.
            steps: Steps of all learners so far; None: there is no other.
            can_be_drawn: Whether there is something to learn from.
        """
        taken = num_steps * self._num_learners
        self._steps_before = self.steps
        self.steps = self.steps + taken if steps is None else steps
        if can_be_drawn:  # others' steps may have come before this one's
            self._learning_steps += max(0, min(taken, self.steps - self._begin))
        used = self._learning_steps * self._config.training_intensity
        own_batch = self._config.batch_size // self._num_sharing
        due = int(used / (own_batch * self._num_learners))
        num_updates, self._num_updates = due - self._num_updates, due
        return num_updates

    def has_passed(self, interval: int) -> bool:
        """Return whether the last rollout reached a multiple of ``interval`` steps."""
        return self.steps // interval > self._steps_before // interval

    def metrics(self, device: torch.device, **more: Tensor) -> dict[str, Tensor]:
        """Return `PACE_METRICS`, and ``more`` of the host, 0-d, in one copy to ``device``."""
        ratio = self._num_updates * self._num_learners / self._num_sharing / self._learning_steps
        rates = ratio, ratio * self._config.batch_size
        values = torch.tensor(rates)
        if more:
            own = [as_metric(*item, torch.device("cpu")) for item in more.items()]
            values = torch.cat((torch.stack(own), values))
        return dict(zip((*more, *PACE_METRICS), send(values, device).unbind(), strict=True))

    def get_state(self) -> dict[str, int]:
        """Return what is added to a learner's state."""
        return {
            "steps": self.steps,
            "begin": self._begin,
            "learning_steps": self._learning_steps,
            "num_updates": self._num_updates,
        }

    def set_state(self, state: Mapping[str, Any], *, has_replay: bool) -> None:
        """Go on from a learner's state; without a replay, ``learning_starts`` later."""
        self.steps = self._steps_before = state["steps"]
        if has_replay and "begin" in state:  # its own, or another learner's
            self._begin, self._num_updates = state["begin"], state["num_updates"]
            self._learning_steps = state["learning_steps"]
        else:
            self._begin = self.steps + self._config.learning_starts
        if self.awaits_first:
            self._first = self._begin


Drawn = TypeVar("Drawn", bound=Transitions | SequenceBatch)

PACE_METRICS = (
    "replay_ratio",  # updates for each step taken
    "training_intensity",  # transitions learned from for each step taken
)


def sent(batch: Drawn, device: torch.device) -> Drawn:
    """Return ``batch`` on the learner's device."""

    def move(field: Any) -> Any:
        return None if field is None else map_leaves(lambda each: send(each, device), field)

    return type(batch)(*map(move, batch))
