"""Settings that all algorithms have, and what an algorithm says about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, ClassVar, Literal, Self

from accel_rl.agents import AnyAgent
from accel_rl.algos.learner import Learner
from accel_rl.algos.task import Batch, Network, RunOptions, SamplerOptions, Task
from accel_rl.capture import Compiled
from accel_rl.parallel import LASAGNE_EPS, Exchange, Rule
from accel_rl.settings import check_settings, option, when


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """Settings of an algorithm, which build its agent and its learner and describe it to a run.

    Nothing else knows which algorithm a run has. An algorithm of your own is a subclass with
    `make_agent`, `make_learner` and `rule`; every other method has a default that suits an
    algorithm that makes one update of each rollout.

    Raises:
        ValueError: A value is out of range, or the class does not define `make_learner` itself.
    """

    built_by: ClassVar[str] = "accel_rl.training.build:build_rollouts"
    """Function that builds runs of the algorithm, as ``module:function``."""
    in_rollouts: ClassVar[bool] = True
    """Whether the algorithm learns from whole rollouts, to which total_steps is rounded up."""
    learns_sequences: ClassVar[bool] = False
    """Whether lstm=true and gru=true are possible."""
    clips_actions: ClassVar[bool] = False
    """Whether the agents draw floats without bounds, which the environments then clip."""
    depends_on_speed: ClassVar[bool] = False
    """Whether options that change the speed also change what is learned."""
    compiled: ClassVar[Compiled | None] = None
    """Measured effect of compiling on a CPU, which capture=auto uses.
    None: not measured. Each class must state it itself; it is not inherited."""
    faster_divided: ClassVar[bool] = False
    """Whether one learner on each of two cores was measured to be faster than one learner with
    workers, which learners=auto uses. Each class must state it itself; it is not inherited."""

    gamma: float = option(0.99, common=True)
    """Discount of one step."""
    time_limit_terminal: bool = False
    """Whether a time limit ends the task with value 0, as in the papers.
    false: the learner bootstraps from the last observation. It always bootstraps if a worker was
    lost before it took a step."""
    lr_schedule: Literal["constant", "linear"] = option("constant", common=True)
    """Schedule of the learning rate. linear: it falls to 0 over the run."""
    max_gradient_norm: float | None = option(None, common=True)
    """Maximum L2 norm of the gradient, which is scaled down to it. none: no limit."""
    gradient_norm_eps: float = option(
        LASAGNE_EPS,
        idle=when("learner.max_gradient_norm", None),
    )
    """With max_gradient_norm, gradients are multiplied by min(norm, max_gradient_norm) / (norm +
    this number). Lasagne has 1e-7. TensorFlow has 0, with which gradients within the limit do
    not change."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """Precision of the network's arithmetic in updates.
    On a CPU it also holds for acting, if A2C or PPO learn from what acting has computed. Parameters
    and other acting are float32. tf32: a GPU also rounds the inputs of matrix products, which is
    faster; torch rounds those of convolutions by default. On a CPU tf32 is float32, and bfloat16 is
    slower without AVX-512."""
    log_norms: bool = option(False, "watching")
    """Measure the L2 norms of parameters, gradients and steps, for the whole network and for each
    layer."""
    gradient_cosine_interval: int = option(0, "watching")
    """Updates between two measurements of the cosine between the gradients of half a batch and of
    the whole batch. 0 disables them."""

    def __post_init__(self) -> None:
        self._check_class()
        check_settings(self)
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not isfinite(value):
                raise ValueError(f"{field.name} is {value}; it must be a finite number")
        require(self, "above 0", lambda value: value > 0, "max_gradient_norm")
        require(self, "from 0 to 1", lambda value: 0 <= value <= 1, "gamma")
        at_least_zero = ("gradient_norm_eps", "gradient_cosine_interval")
        require(self, "at least 0", lambda value: value >= 0, *at_least_zero)

    def _check_class(self) -> None:
        kind = type(self)
        if kind is not LearnerConfig and "make_learner" in vars(kind):
            return
        hint = ""
        base = next((each for each in kind.__mro__[1:] if "make_learner" in vars(each)), None)
        if base not in (None, LearnerConfig):
            name = f"{base.__name__}.make_learner"
            hint = f"; to be trained as its base class, it says `make_learner = {name}`"
        raise ValueError(
            f"learner is of class {kind.__name__}, which must define make_learner itself, so that "
            f"no run is trained by another algorithm than its config says{hint}"
        )

    def make_agent(self, network: Network) -> AnyAgent:
        """Return the agent that acts and learns, with fresh parameters on ``network.device``.

        Raises:
            ValueError: There is no such network, it does not fit the environment, or the algorithm
                cannot learn the environment's spaces.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define make_agent")

    def make_learner(self, agent: AnyAgent, exchange: Exchange, task: Task) -> Learner:
        """Return the learner of ``agent``, whose gradients ``exchange`` applies by `rule`.

        Raises:
            ValueError: The settings do not fit the task, or the memory of its device.
        """
        raise NotImplementedError

    @property
    def uses_ratios(self) -> bool:
        """Whether it uses probability ratios of the policy that learns to the one that acted.

        With pull_steps it then takes over the store's parameters also before it learns. If its
        learner has a ``behaviour``, that is told which parameters acted.
        """
        return False

    def evaluating(self, agent: AnyAgent) -> AnyAgent:
        """Return the agent of the same network that acts in evaluations."""
        return agent

    def check_run(self, run: RunOptions) -> None:
        """Check that the options of a run fit the algorithm.

        Raises:
            ValueError: They do not.
        """
        self.check_halves("num_envs", run.sampler.num_envs)

    def never_captured(self, run: RunOptions) -> str | None:
        """Return what does not go together with ``capture=on`` and why; None: nothing."""
        if self.gradient_cosine_interval:
            return (
                f"gradient_cosine_interval={self.gradient_cosine_interval}, a second backward "
                "pass through one forward pass"
            )
        return None

    def sequence_steps(self, horizon: int) -> int:
        """Return how many steps a recurrent network learns from in order: a rollout's ``horizon``.

        A learner that draws its sequences from a replay has a length of its own.
        """
        return horizon

    def kept_layers(self, num_layers: int) -> int:
        """Return how many of the last ``num_layers`` acting leaves to `RolloutTensors.activations`.

        Only a learner that recalls what acting computed wants any.
        """
        return 0

    def samples_per_update(self, num_collected: int) -> int:
        """Return the samples of one update, of rollouts with ``num_collected`` steps.

        Both count those of all learners that share the update.
        """
        return num_collected

    def batches(self, sampler: SamplerOptions) -> dict[str, Batch]:
        """Return, by option, the batches that learners in step must be able to divide.

        A class that defines it itself says that its updates stay the same however many learners
        divide them, so that ``learners=auto`` may choose several.
        """
        return {"num_envs": Batch(sampler.num_envs)}

    @classmethod
    def divides(cls) -> bool:
        """Return whether the class itself, and no base class, defines `batches`."""
        return "batches" in vars(cls)

    def nbytes(self, task: Task) -> int:
        """Return the bytes that the learner of ``task`` holds beside its network and rollouts."""
        return 0

    def suggest_envs(self, num_envs: int, run: RunOptions, num_learners: int) -> str:
        """Return options with ``num_envs`` that ``num_learners`` can divide."""
        return f"num_envs={num_envs}"

    def begins_after(self, steps: int, state: Mapping[str, Any]) -> int:
        """Return after how many steps a run learns, or learns again.

        Args:
            steps: Steps after which the run goes on; 0: it is a new run.
            state: State of its learner, of which only the names need be there.
        """
        return steps

    def lightened(self, sampler: SamplerOptions, frame_stack: int = 64, steps: int = 0) -> Self:
        """Return these settings with as little memory as is allowed, to try out a run.

        Args:
            sampler: How experience is gathered.
            frame_stack: Frames of an observation.
            steps: Steps that a replay may hold in any case.
        """
        return self

    def part(self, num_learners: int) -> Self:
        """Return the settings of one learner alone that does the part of one of several."""
        return self

    def check_halves(self, name: str, size: int) -> None:
        """Raises ValueError if batches of ``size``, option ``name``, have no halves to compare."""
        if self.gradient_cosine_interval and size < 2:
            raise ValueError(
                f"gradient_cosine_interval={self.gradient_cosine_interval} compares half a batch "
                f"with all of it, but {name} is {size}; use a larger {name}, or "
                "gradient_cosine_interval=0"
            )

    @property
    def rule(self) -> Rule:
        """The update rule, for the exchange."""
        raise NotImplementedError(f"{type(self).__name__} does not define rule")

    @property
    def has_schedule(self) -> bool:
        """Whether something changes with the share of the run that is done."""
        return self.lr_schedule != "constant"

    def remaining(self, progress: float) -> float:
        """The factor of the schedule when ``progress`` in [0, 1] of it is done."""
        return 1 - progress if self.lr_schedule == "linear" else 1.0


def require(config: object, what: str, holds: Callable[[float], bool], *names: str) -> None:
    """Raises ValueError for the first of the fields ``names`` that is a number and not ``what``."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not holds(value):
            raise ValueError(f"{name} is {value}; it must be {what}")


def name_of(config: LearnerConfig) -> str:
    """Return the algorithm's name in messages: that of its class, without Config."""
    return type(config).__name__.removesuffix("Config")
