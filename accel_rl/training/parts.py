"""The parts of a run, built from its config. No process and no file is made here."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from accel_rl.agents import EpsilonGreedyAgent, RolloutTensors
from accel_rl.algos import DQN, AnyAgent, DQNConfig, LearnerConfig, make_agent, make_learner
from accel_rl.algos.two_learners import PREFIX, TwoLearners
from accel_rl.config import TrainConfig
from accel_rl.envs import make_env_factory
from accel_rl.parallel import Exchange, FlatParameters, Local
from accel_rl.samplers import (
    ActionServer,
    ParallelSampler,
    SamplerError,
    SamplerState,
    SerialSampler,
)
from accel_rl.samplers.base import PolicyInput, Sampler
from accel_rl.samplers.states import decode_state, encode_state
from accel_rl.training.evaluation import Evaluator


class Server(Protocol):
    """What the loop needs of an action server: it acts, then hands over the rollout."""

    def __call__(self, step: PolicyInput) -> Any: ...

    def finish(self) -> RolloutTensors: ...

    def close(self) -> None: ...


class Learner(Protocol):
    """What the loop needs of an algorithm. ``metric_names``: all that `update` may return."""

    @property
    def metric_names(self) -> tuple[str, ...]: ...

    def update(self, batch: RolloutTensors, progress: float) -> Mapping[str, torch.Tensor]: ...

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Parts:
    """What a run consists of, built but not started."""

    sampler: Sampler
    server: Server
    learner: Learner
    exchange: Exchange
    evaluator: Evaluator | None
    device: torch.device
    num_parameters: int

    def start(self, saved: Mapping[str, Any] | None) -> None:
        """Starts the simulators: anew, or from the checkpoint ``saved``."""
        self.sampler.start(None if saved is None else _sampler_state(saved))

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds of them, and why the simulators' state could not be had.

        ``failure``: a `SamplerError` or None. What was learned is worth keeping without them.
        """
        sampler, failure = None, None
        if self.sampler.is_running:
            try:
                encoded = encode_state(self.sampler.get_state()._asdict())
                sampler = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
            except SamplerError as error:
                failure = error
        return {
            "failure": failure,
            "learner": self.exchange.state_dict(),
            "algorithm": self.learner.get_state(),
            "sampler": sampler,
            "evaluator": self.evaluator.get_state() if self.evaluator else None,
            "torch_rng": torch.get_rng_state(),
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """All but the simulators go on from the checkpoint ``saved``.

        Raises:
            ValueError: it is of another model or rule.
        """
        self.exchange.load_state_dict(saved["learner"])
        self.learner.set_state(saved["algorithm"])
        torch.set_rng_state(saved["torch_rng"])
        if self.evaluator is not None and saved["evaluator"] is not None:
            self.evaluator.set_state(saved["evaluator"])

    def describe(self) -> str:
        """One line for people: what is trained where."""
        sampler = self.sampler
        where = "in this process"
        if isinstance(sampler, ParallelSampler):
            where = f"in {sampler.plan.describe()}"
        spec = sampler.env_spec
        return (
            f"{sampler.config.num_envs} x {spec.name} {where}; {self.num_parameters:,} parameters "
            f"on {self.device}"
        )


def build(config: TrainConfig, saved: Mapping[str, Any] | None = None) -> Parts:
    """The parts of a new run, or of one that goes on from the checkpoint ``saved``.

    Raises:
        ValueError: the config cannot be had here; the message says what can.
    """
    device = pick_device(config.device)
    factory = make_env_factory(config.env, config.atari)
    seed = config.seed
    if saved is not None and saved["sampler"] is None:
        # Its simulators start anew, and shall not repeat what they did at the start of the run.
        seeds = np.random.SeedSequence([config.seed, int(saved["counts"]["steps"])])
        seed = int(seeds.generate_state(1)[0])
    sampler: Sampler
    if config.serial:
        sampler = SerialSampler(factory, config.sampler, seed)
    else:
        cpus = list(config.cpus) or None
        drives_gpu = device.type == "cuda"
        sampler = ParallelSampler(factory, config.sampler, seed, cpus, drives_gpu)
    with contextlib.ExitStack() as undo:
        undo.callback(sampler.close)
        spec = sampler.env_spec
        torch.manual_seed(config.seed)
        agent = make_agent(config.learner, config.model, spec, device)
        exchange = _make_exchange(config.learner, agent)
        num_envs, horizon = config.sampler.num_envs, config.sampler.horizon
        learner: Learner = make_learner(
            config.learner, agent, exchange, spec, num_envs, horizon, config.seed
        )
        agents = {"": agent}
        if isinstance(config.learner, DQNConfig) and config.learner.secondary_learner:
            agents[PREFIX] = copy.deepcopy(agent)
            learner = _add_second(config, learner, agents[PREFIX])
        evaluator = None
        if config.evaluation_interval:
            evaluator = Evaluator(config, agents, device)
        server = ActionServer(agent, sampler, device)
        undo.pop_all()
    num_parameters = sum(parameter.numel() for parameter in agent.model.parameters())
    return Parts(sampler, server, learner, exchange, evaluator, device, num_parameters)


def _make_exchange(config: LearnerConfig, agent: AnyAgent) -> Exchange:
    return Local(FlatParameters(agent.model), config.rule, config.max_gradient_norm)


def _add_second(config: TrainConfig, first: Learner, agent: AnyAgent) -> TwoLearners:
    """The Q-learning learner ``first`` with a second one, of ``agent``."""
    assert isinstance(first, DQN) and isinstance(agent, EpsilonGreedyAgent)
    # Apart from the evaluations' seeds, which come from config.seed as well.
    seed = int(np.random.SeedSequence([config.seed, 3]).generate_state(1)[0])
    return TwoLearners(first, agent, _make_exchange(first.config.secondary, agent), seed)


def _sampler_state(saved: Mapping[str, Any]) -> SamplerState | None:
    if saved["sampler"] is None:
        return None
    return SamplerState(**decode_state(saved["sampler"].numpy().tobytes()))


def pick_device(name: str) -> torch.device:
    """The device that ``name`` (auto, cpu, cuda) means; a ValueError if there is none here."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, but torch finds no GPU here; use device=cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
