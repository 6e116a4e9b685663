"""What all algorithms have: settings, and the base class of learners."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from accel_rl.agents import Agent, RolloutTensors
from accel_rl.algos.optimizer import Optimizer
from accel_rl.algos.specs import Batch, LearnerSpec, NetworkSpec
from accel_rl.graphs import Graphs
from accel_rl.options import check_settings, option, require
from accel_rl.parallel import GradientSync, UpdateRule


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """The settings of an algorithm. They make its agent and learner, and describe it to the run.

    No other part of a run knows the algorithm. For an algorithm of your own write a subclass with
    `make_agent`, `make_learner` and `rule`. The other methods have defaults that fit an algorithm
    with one update for each rollout.

    Raises:
        ValueError: A value is out of range.
    """

    in_rollouts: ClassVar[bool] = True
    """Whether the algorithm learns from whole rollouts, to which total_steps is rounded up. Only
    GA3C does not."""
    learns_sequences: ClassVar[bool] = False
    """Whether memory=lstm and memory=gru are possible."""
    clips_actions: ClassVar[bool] = False
    """Whether the agents draw floats without bounds, which the environments then clip."""

    cheaper: ClassVar[str] = "a larger num_envs, or a GPU"
    """What makes learning take less of the time, for the line that says what limits a run."""

    gamma: float = option(0.99, common=True)
    """Discount of one step."""
    bootstrap_on_truncation: bool = True
    """Bootstrap from the last observation of an episode that a time limit cut off.
    false: the limit ends the task with value 0, as in the papers. The learner always bootstraps if
    a worker was lost before it took a step."""
    lr_schedule: Literal["constant", "linear"] = option("constant", common=True)
    """Schedule of the learning rate. linear: it falls to 0 over the run."""
    max_gradient_norm: float | None = option(None, common=True)
    """Maximum L2 norm of the gradient, which is scaled down to it. none: no limit."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """Precision of the network's arithmetic in updates.
    Parameters and acting are float32. tf32: a GPU also rounds the inputs of matrix products, which
    is faster; torch rounds those of convolutions by default. On a CPU tf32 is float32, and bfloat16
    is slower without AVX-512."""
    log_norms: bool = option(False, "watching")
    """Measure the L2 norms of parameters, gradients and steps, for the whole network and for each
    layer, and at each tenth update the cosine between the gradients of half a batch and of the
    whole batch."""

    def __post_init__(self) -> None:
        check_settings(self)
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not isfinite(value):
                raise ValueError(f"{field.name} is {value}; it must be a finite number")
        require(self, "above 0", lambda value: value > 0, "max_gradient_norm")
        require(self, "from 0 to 1", lambda value: 0 <= value <= 1, "gamma")

    def make_agent(self, network: NetworkSpec) -> Agent:
        """Return an agent with new parameters on ``network.device``.

        Args:
            network: the arguments.

        Raises:
            ValueError: There is no such network, it does not fit the environment, or the algorithm
                cannot learn the environment's spaces.
        """
        raise _lacks(self, "make_agent")

    def make_learner(self, agent: Agent, sync: GradientSync, task: LearnerSpec) -> Learner:
        """Return the learner of an agent.

        Args:
            agent: an agent of `make_agent`.
            sync: applies the learner's gradients by `rule`.
            task: the part of the run that the learner has.

        Raises:
            ValueError: The settings do not fit the task, or the memory of its device.
        """
        raise _lacks(self, "make_learner")

    @property
    def uses_ratios(self) -> bool:
        """True if the learner uses probability ratios of its policy and the policy that acted.

        With ``pull_steps`` it then takes the store's parameters before each update, too. The agents
        of `ActorCriticConfig` then keep log-probabilities and values when they act.
        """
        return False

    def evaluating(self, agent: Agent) -> Agent:
        """Return an agent with the same network that acts in evaluations.

        Args:
            agent: an agent of `make_agent`.
        """
        return agent

    def check_run(self, run: Any) -> None:
        """Check that the options of a run fit the algorithm.

        Args:
            run: the options, a `TrainConfig`.

        Raises:
            ValueError: an option does not fit; the message names it.
        """

    def never_recorded(self, run: Any) -> str | None:
        """Return the option that ``cuda_graphs=on`` does not work with, and why, or None.

        Args:
            run: the options of the run, a `TrainConfig`.
        """
        if self.log_norms:
            return "log_norms=true, with a second backward pass through one forward pass"
        return None

    def batches(self, sampler: Any) -> dict[str, Batch]:
        """Return the batches that learners in step must be able to divide, by option.

        One of another option than ``num_envs`` is that of one update.

        Args:
            sampler: the options of sampling, a `SamplerConfig`.
        """
        return {"num_envs": Batch(sampler.num_envs)}

    @property
    def rule(self) -> UpdateRule:
        """The update rule."""
        raise _lacks(self, "rule")


class Part(Protocol):
    """A part of a learner whose state a checkpoint holds."""

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: Mapping[str, Any]) -> None: ...


class Learner:
    """Base class of learners. A subclass defines `loss` or `update`.

    Args:
        agent: the agent whose parameters learn.
        config: the settings.
        sync: holds the flat parameters of ``agent.model`` and applies the gradients.
        task: the part of the run that this learner has.

    Attributes:
        metrics: names of all metrics of `loss` and `update`, without those of the optimizer.
        metric_names: names of all metrics that `update` may return.
        optimizer: makes the optimizer steps.
        parts: parts whose state is saved: `get_state` returns what all of them return.
    """

    metrics: ClassVar[tuple[str, ...]] = ()
    agent: Any
    config: Any

    def __init__(self, agent: Any, config: Any, sync: GradientSync, task: LearnerSpec) -> None:
        self.agent, self.config, self.sync, self.task = agent, config, sync, task
        self.device = sync.parameters.parameter.device
        self.optimizer = Optimizer(sync, self.graphs, log_norms=config.log_norms)
        self.metric_names: tuple[str, ...] = (*self.metrics, *self.optimizer.names)
        self.parts: list[Part] = [self.optimizer]

    @property
    def graphs(self) -> Graphs | None:
        """What records updates as CUDA graphs; None: they run as they are."""
        graphs: Graphs | None = self.agent.graphs
        return graphs

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without parameters and optimizer state."""
        state: dict[str, Any] = {}
        for part in self.parts:
            state |= part.get_state()
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state.

        Args:
            state: the value that `get_state` returned.
        """
        for part in self.parts:
            part.set_state(state)

    def update(
        self, batch: RolloutTensors, progress: float, steps: int | None = None
    ) -> Mapping[str, Tensor]:
        """Learn from a rollout. Default: one optimizer step on the `loss` of the whole rollout.

        Args:
            batch: the rollout, ``[T, B]``; it may be overwritten afterwards.
            progress: completed share of the schedules, in [0, 1].
            steps: steps that all learners have taken, including this rollout.

        Returns:
            Metrics by name, 0-d tensors on the learner's device.
        """
        lr = self.learning_rate(progress)
        self.optimizer.minimize(self.loss, self.given(batch), lr=lr)
        return self.optimizer.take_metrics()

    def given(self, batch: RolloutTensors) -> Any:
        """Return a rollout as an input of `minimize`, which CUDA graphs read where it stays.

        Args:
            batch: the rollout, ``[T, B]``.
        """
        given = batch._replace(host=None)
        stays = batch.stays and len(batch.final_step) == 0
        return self.optimizer.fixed(given) if stays else given

    def learning_rate(self, progress: float) -> float:
        """Return the learning rate, by the options ``lr`` and ``lr_schedule``.

        Args:
            progress: completed share of the schedule, in [0, 1].
        """
        lr: float = self.config.lr
        return lr * remaining(self.config, progress)

    def loss(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the loss of a batch, which comes first, and metrics.

        Returns:
            What each sample adds to the loss, ``[N]`` with gradient; and metrics by name, which
            are numbers or tensors of one element. See `Optimizer.minimize`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define loss or update")


def check_learner(learner: Learner) -> None:
    """Check that a run can use a learner of a user's class.

    Raises:
        ValueError: A member of `Learner` is missing, or `update` takes other arguments.
    """
    name = type(learner).__name__
    for member in ("metric_names", "update", "get_state", "set_state"):
        if not hasattr(learner, member):
            raise ValueError(f"the learner {name} must define {member}, as accel_rl.algos.Learner")
    signature = inspect.signature(learner.update)
    try:
        signature.bind("batch", "progress", "steps")
    except TypeError as error:
        raise ValueError(
            f"{name}.update must take the arguments (batch, progress, steps); it takes "
            f"({', '.join(signature.parameters)})"
        ) from error


def name_of(config: LearnerConfig) -> str:
    """Return the algorithm's name in messages: that of its class, without Config."""
    return type(config).__name__.removesuffix("Config")


def restore(generator: torch.Generator, state: Tensor) -> None:
    """Restore the saved state of a generator of random numbers.

    Generators of another kind of device have other states; then the state seeds this generator.
    """
    if state.numel() == generator.get_state().numel():
        generator.set_state(state)
    else:
        digest = hashlib.sha256(state.numpy().tobytes()).digest()
        generator.manual_seed(int.from_bytes(digest[:7], "little"))


def remaining(config: LearnerConfig, progress: float) -> float:
    """Return the factor of ``lr_schedule``."""
    return 1 - progress if config.lr_schedule == "linear" else 1.0


def _lacks(config: LearnerConfig, name: str) -> ValueError:
    return ValueError(f"learner is of class {type(config).__name__}, which must define {name}")
