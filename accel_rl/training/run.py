"""A run that is built: its parts, its records, and what every kind of loop needs."""

from __future__ import annotations

import logging
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accel_rl.agents import Agent, normalizer_state
from accel_rl.config import TrainConfig
from accel_rl.graphs import Graphs
from accel_rl.parallel import GradientSync, Ranks, StoreSync, Team
from accel_rl.samplers.block import count_nothing
from accel_rl.system.stopping import StopRequest
from accel_rl.training.evaluation import Evaluator
from accel_rl.training.metrics import OnRow, has_reached_score
from accel_rl.training.progress import Progress
from accel_rl.training.records import Records

ALONE = Team(Ranks())

_LOGGER = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class Run(ABC):
    """A run as one of its learners has it: built, then `open`, then `iterate`.

    Attributes:
        team: this learner and the others.
        sampler: a `accel_rl.samplers.sampler.PoolSampler`.
        learner: has ``metric_names``, ``get_state`` and ``set_state``, as `accel_rl.algos.Learner`.
        evaluator: plays games now and then; None: it is off, or the first learner does.
        initial: a line about the trained parameters that the run starts from, if there are any.
        records: what is counted and written; there from `open` on.
        stop: whether somebody has asked the run to end; likewise.
    """

    config: TrainConfig
    team: Team
    device: torch.device
    sampler: Any
    agent: Agent
    learner: Any
    sync: GradientSync
    evaluator: Evaluator | None
    initial: str = ""
    run_dir: Path = field(init=False)
    records: Records = field(init=False)
    stop: StopRequest = field(init=False)

    @abstractmethod
    def iterate(self) -> None:
        """Sample and learn until all steps are taken or a stop is asked for."""

    @abstractmethod
    def close(self, *, waits: bool = True) -> None:
        """End threads and simulators, also after a failure. Calling it again does nothing.

        ``waits``: False where the device never answers again; what would ask it is left alone.
        """

    @property
    def has_threads(self) -> bool:
        """True if several threads of this process compute with the network."""
        return self.config.overlap

    @property
    def extra_metrics(self) -> tuple[str, ...]:
        """Metrics beside those of the learner."""
        return ()

    @property
    def place(self) -> str:
        """Text that says where the environments are stepped."""
        plan = getattr(self.sampler, "plan", None)
        return "in this process" if plan is None else f"in {plan.describe()}"

    def open(
        self,
        run_dir: Path,
        stop: StopRequest,
        progress: Progress,
        on_row: OnRow | None = None,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin the records in ``run_dir``, or go on with those of ``saved``."""
        self.run_dir, self.stop = run_dir, stop

        def look(row: Mapping[str, float]) -> None:
            is_over = has_reached_score(self.config, row)
            answer = None if on_row is None else on_row(row)
            if isinstance(answer, Mapping):
                self.give_options(answer)
            elif answer:
                is_over = True
            if is_over and row["steps"] < self.config.planned_steps:
                stop.ask()

        spec = self.sampler.env_spec
        self.records = Records(
            self.config,
            run_dir,
            self.team,
            self.sync,
            self.get_state,
            progress if self.team.ranks.is_first else None,
            metric_names=self.learner.metric_names + self.extra_metrics,
            frame_skip=spec.frame_skip,
            info_keys=spec.info_keys,
            on_row=look,
            saved=saved,
        )

    def give_options(self, options: Mapping[str, Any]) -> None:
        """Give options to the resets of all environments from the next rollout on.

        Raises:
            ValueError: This run cannot.
        """
        raise ValueError(
            f"on_row returned a mapping, options of resets, which algo={self.config.algo} with "
            f"learners={self.team.ranks.size} does not pass on; use one learner, and no ga3c"
        )

    def start(
        self, saved: Mapping[str, Any] | None, look: Callable[[int], object] = count_nothing
    ) -> None:
        """Start the simulators: anew, or from the checkpoint ``saved``.

        Args:
            look: as in `accel_rl.samplers.sampler.RolloutSampler.start`.
        """
        self.sampler.start(None, look)

    def get_state(self) -> dict[str, Any]:
        """Return a checkpoint of the parts.

        Its ``failure`` is the `SamplerError` for which the simulators' state is missing, or None:
        the other parts are worth keeping without it.
        """
        return {
            "failure": None,
            "learner": self.sync.state_dict(),
            "algorithm": self.learner.get_state(),
            "sampler": None,
            "recurrent_state": None,
            "evaluator": self.evaluator.get_state() if self.evaluator else None,
            "torch_rng": torch.get_rng_state(),
            **normalizer_state(self.agent),
            **self._sampler_state(),
        }

    def _sampler_state(self) -> dict[str, Any]:
        """Return the entries of a checkpoint about simulators, if there are any."""
        return {}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore all parts but the simulators from the checkpoint ``saved``.

        Raises:
            ValueError: it is of another model or rule.
            TeamError: another learner is gone.
        """
        store = self._store
        if self.team.ranks.is_first or store is None:
            self.sync.load_state_dict(saved["learner"])
        self.learner.set_state(saved["algorithm"])
        if store is not None:
            self.team.meet("loaded")  # nobody pushes before
            store.pull()
        torch.set_rng_state(saved["torch_rng"])
        if self.evaluator is not None and saved["evaluator"] is not None:
            self.evaluator.set_state(saved["evaluator"])

    def describe(self) -> str:
        """Return a line that says what is trained where."""
        num_parameters = sum(each.numel() for each in self.agent.model.parameters())
        return (
            f"{self.sampler.config.num_envs} x {self.sampler.env_spec.name} {self.place}; "
            f"{num_parameters:,} parameters on {self.device}"
        )

    def describe_gpu(self) -> str:
        """Return how the GPU was used; an empty text on a CPU."""
        if self.device.type != "cuda":
            return ""
        memory = torch.cuda.max_memory_reserved(self.device) / 1e9
        graphs = self.graphs.describe() if self.graphs is not None else "no graphs"
        return f"{memory:.2f} GB of memory; {graphs}"

    @property
    def graphs(self) -> Graphs | None:
        """CUDA graphs of acting and updates."""
        return self.agent.graphs

    @property
    def is_apart(self) -> bool:
        """True if there are other learners that do not go in step with this learner."""
        return self.team.ranks.size > 1 and self.config.parallel.sync == "store"

    @property
    def _store(self) -> StoreSync | None:
        return self.sync if isinstance(self.sync, StoreSync) else None

    def count_steps(self) -> int:
        """Return the steps of all learners, with one more iteration of this learner."""
        if self.is_apart:
            return self.team.add_steps(self.config.steps_per_iteration)
        return self.records.steps + self.config.steps_per_iteration

    def is_stopped(self) -> bool:
        """Return whether to stop here. Learners in step stop after the same iteration."""
        stop, team = self.stop, self.team
        if not self.is_apart:
            code = team.largest(stop.code)
            stop.follow(code)
            return code > 0
        if stop.is_asked():
            team.ask_to_stop()
        elif team.is_stop_asked:  # by another, whose signal is not known here
            stop.follow(signal.SIGTERM)
        return team.is_stop_asked

    def is_evaluation_due(self) -> bool:
        """Return whether to evaluate now. Learners in step agree."""
        if self.evaluator is None or not self.evaluator.is_due(self.records.steps):
            return False
        return not (self.stop.is_asked() if self.is_apart else self.is_stopped())

    def evaluate_if_due(self) -> None:
        """Evaluate the present parameters if an evaluation is due.

        Learners in step share its games. With a store the other learners go on meanwhile: no step
        waits for the evaluation's end, and the next gradient is of the newest parameters.
        """
        if not self.is_evaluation_due():
            return
        assert self.evaluator is not None
        store = self._store
        if store is not None:
            store.pull()
        self.records.evaluate(self.evaluator, self.stop)
        if store is not None:
            store.pull()

    def finish(self) -> None:
        """Write the last records and the last checkpoint of all learners together."""
        records, team, steps = self.records, self.team, self.records.steps
        if self._store is not None:
            self._store.pull()  # steps that the store has not seen go into it
        if self.is_apart and team.ranks.is_first:
            team.meet("end")
            steps = team.add_steps(0)
        records.finish(steps)
        records.save_last()
        if self.is_apart and not team.ranks.is_first:
            team.reach("end", 1)  # and waits for nobody: the first learner may evaluate for long
