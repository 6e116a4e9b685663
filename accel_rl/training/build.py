"""The parts of a run, built from its config. No process and no file is made here."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from accel_rl.agents import CategoricalAgent
from accel_rl.algos import A2C, GA3C, PPO, AnyAgent, GA3CConfig, make_learner
from accel_rl.capture import EAGER
from accel_rl.config import TrainConfig
from accel_rl.ga3c.queued import QueuedSampler
from accel_rl.models.image import ImageNetwork
from accel_rl.parallel import (
    Exchange,
    FlatParameters,
    Ranks,
    StoreExchange,
    Team,
    VersionExchange,
    Versions,
    rank_seed,
)
from accel_rl.samplers import (
    ActionServer,
    ParallelSampler,
    SamplerConfig,
    SamplerError,
    SamplerState,
    SerialSampler,
)
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.states import decode_state, encode_state
from accel_rl.topology import Seat, plan_cores
from accel_rl.training.agent import agent_of, factory_of
from accel_rl.training.devices import gpu_nodes, learner_device, make_capture, num_gpus
from accel_rl.training.division import sampler_share
from accel_rl.training.evaluation import Evaluator
from accel_rl.training.exchanges import PullingServer, make_exchange
from accel_rl.training.overlap import Overlap
from accel_rl.training.protocols import Learner, Server
from accel_rl.training.queue_threads import QueueThreads
from accel_rl.training.torch_setup import has_small_updates

ALONE = Team(Ranks())


@dataclass(frozen=True)
class Parts:
    """What a run consists of, built but not started."""

    sampler: RolloutSampler | QueuedSampler
    server: Server | QueueThreads
    agent: AnyAgent
    learner: Learner | GA3C
    exchange: Exchange
    evaluator: Evaluator | None
    device: torch.device
    overlap: Overlap | None = None
    is_small: bool = False
    """of its updates, see `has_small_updates`"""

    @property
    def in_turns(self) -> tuple[RolloutSampler, Server, Learner]:
        """The parts of an algorithm that collects and learns in turns: any but GA3C."""
        sampler, server, learner = self.sampler, self.server, self.learner
        assert not isinstance(sampler, QueuedSampler)
        assert not isinstance(server, QueueThreads) and not isinstance(learner, GA3C)
        return sampler, server, learner

    def start(self, saved: Mapping[str, Any] | None) -> None:
        """Starts the simulators: anew, or from the checkpoint ``saved``."""
        state = None if saved is None else _sampler_state(saved)
        self.sampler.start(state)
        if saved is not None and state is not None:
            _, server, _ = self.in_turns
            server.set_state(saved.get("recurrent_state"))  # none is in older checkpoints

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds of them, and why the simulators' state could not be had.

        ``failure``: a `SamplerError` or None. What was learned is worth keeping without them.
        """
        sampler, recurrent_state, failure = None, None, None
        if self.sampler.is_running and not isinstance(self.sampler, QueuedSampler):
            try:
                encoded = encode_state(self.sampler.get_state()._asdict())
                sampler = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
                recurrent_state = self.in_turns[1].get_state()
            except SamplerError as error:
                failure = error
        return {
            "failure": failure,
            "learner": self.exchange.state_dict(),
            "algorithm": self.learner.get_state(),
            "sampler": sampler,
            "recurrent_state": recurrent_state,
            "evaluator": self.evaluator.get_state() if self.evaluator else None,
            "torch_rng": torch.get_rng_state(),
        }

    def set_state(self, saved: Mapping[str, Any], team: Team = ALONE) -> None:
        """All but the simulators go on from the checkpoint ``saved``.

        Raises:
            ValueError: it is of another model or rule.
            TeamError: another learner is gone.
        """
        store = self.exchange if isinstance(self.exchange, StoreExchange) else None
        if team.ranks.is_first or store is None:
            self.exchange.load_state_dict(saved["learner"])
        self.learner.set_state(saved["algorithm"])
        if store is not None:
            team.meet("loaded")  # nobody pushes before
            store.pull()
        torch.set_rng_state(saved["torch_rng"])
        if self.evaluator is not None and saved["evaluator"] is not None:
            self.evaluator.set_state(saved["evaluator"])

    def describe(self) -> str:
        """One line for people: what is trained where."""
        sampler = self.sampler
        where = "in this process"
        if isinstance(sampler, ParallelSampler):
            where = f"in {sampler.plan.describe()}"
        if isinstance(sampler, QueuedSampler):
            where = f"in {sampler.config.num_groups} agents"
        num_parameters = sum(each.numel() for each in self.agent.model.parameters())
        return (
            f"{sampler.config.num_envs} x {sampler.env_spec.name} {where}; "
            f"{num_parameters:,} parameters on {self.device}"
        )


def build(config: TrainConfig, saved: Mapping[str, Any] | None = None, team: Team = ALONE) -> Parts:
    """The parts of a new run, or of one that goes on from the checkpoint ``saved``.

    With a ``team``, those of one of its learners.

    Raises:
        ValueError: the config cannot be had here; the message says what can.
        TeamError: another learner is gone.
    """
    ranks = team.ranks
    device = learner_device(config, ranks)
    capture = make_capture(config, device)
    seed = config.seed
    if saved is not None and saved["sampler"] is None:
        # Its simulators start anew, and shall not repeat what they did at the start of the run.
        seeds = np.random.SeedSequence([config.seed, int(saved["counts"]["steps"])])
        seed = int(seeds.generate_state(1)[0])
    if isinstance(config.learner, GA3CConfig):
        return _build_queued(config, config.learner, seed, device)
    sampler = make_sampler(config, sampler_share(config, ranks), seed, device, ranks)
    with contextlib.ExitStack() as undo:
        undo.callback(sampler.close)
        spec = sampler.env_spec
        torch.manual_seed(config.seed)
        agent = agent_of(config, spec, device, capture=capture)
        exchange = make_exchange(config, agent, team)
        learner: Learner = make_learner(
            config.learner,
            agent,
            exchange,
            spec,
            sampler.config.num_envs,
            sampler.config.horizon,
            rank_seed(config.seed, ranks.rank),
            ranks,
        )
        evaluator = None
        if config.evaluation_interval and ranks.is_first:
            evaluator = Evaluator(config, agent, device)
        num_collected = sampler.config.num_envs * sampler.config.horizon
        is_small = has_small_updates(config, num_collected, exchange)
        overlap = None
        if config.overlap:
            overlap = Overlap(agent, learner, exchange, device, is_small=is_small)
        server = _make_server(config, agent, overlap, sampler, learner, exchange, device)
        undo.pop_all()
    return Parts(sampler, server, agent, learner, exchange, evaluator, device, overlap, is_small)


def _build_queued(
    config: TrainConfig, learner: GA3CConfig, seed: int, device: torch.device
) -> Parts:
    """Those of GA3C."""
    agents = config.sampler.num_groups
    sampler = QueuedSampler(
        factory_of(config),
        config.sampler,
        seed,
        list(config.cpus) or None,
        drives_gpu=device.type == "cuda",
        most_agents=learner.max_agents or (4 * agents if learner.tuner else agents),
        max_prediction_batch=learner.max_prediction_batch,
        training_queue_size=learner.training_queue_size,
        gamma=learner.gamma,
        time_limit_terminal=learner.time_limit_terminal,
        drops_last_reward=learner.compatibility,
    )
    with contextlib.ExitStack() as undo:
        undo.callback(sampler.close)
        torch.manual_seed(config.seed)
        agent = agent_of(config, sampler.env_spec, device)
        assert isinstance(agent, CategoricalAgent)
        flat = FlatParameters(agent.model)
        max_norm, eps = learner.max_gradient_norm, learner.gradient_norm_eps
        versions = Versions(flat.parameter, learner.rule, max_norm, gradient_norm_eps=eps)
        exchange = VersionExchange(flat, versions)
        learns = GA3C(agent, learner, exchange)
        threads = QueueThreads(agent, learns, versions, sampler, device)
        evaluator = Evaluator(config, agent, device) if config.evaluation_interval else None
        undo.pop_all()
    return Parts(sampler, threads, agent, learns, exchange, evaluator, device)


def with_sampler(parts: Parts, config: TrainConfig, team: Team) -> Parts:
    """``parts``, whose simulators have not begun, with those of ``config``'s sampler instead."""
    parts.server.close()
    parts.sampler.close()
    share = sampler_share(config, team.ranks)
    sampler = make_sampler(config, share, config.seed, parts.device, team.ranks)
    _, _, learner = parts.in_turns
    server = _make_server(
        config, parts.agent, parts.overlap, sampler, learner, parts.exchange, parts.device
    )
    return dataclasses.replace(parts, sampler=sampler, server=server)


def _make_server(
    config: TrainConfig,
    agent: AnyAgent,
    overlap: Overlap | None,
    sampler: RolloutSampler,
    learner: Learner,
    exchange: Exchange,
    device: torch.device,
) -> Server:
    if overlap is not None:
        return ActionServer(overlap.agent, sampler, device, keeps_rollout=True)
    server = make_action_server(config, agent, sampler, learner, device)
    if isinstance(exchange, StoreExchange) and config.parallel.pull_steps is not None:
        return PullingServer(server, exchange, learner, config.parallel.pull_steps)
    return server


def make_action_server(
    config: TrainConfig,
    agent: AnyAgent,
    sampler: RolloutSampler,
    learner: Learner,
    device: torch.device,
) -> ActionServer:
    """What acts for ``sampler`` and gives ``learner`` its rollouts."""
    kept_layers = _kept_layers(config, learner, agent, device)
    precision = config.learner.precision if kept_layers else "float32"
    return ActionServer(agent, sampler, device, kept_layers=kept_layers, precision=precision)


def _kept_layers(
    config: TrainConfig, learner: Learner, agent: AnyAgent, device: torch.device
) -> int:
    """How many layers' activations to learn from that acting, with the same parameters, has made.

    None on a GPU, where this has not been measured.
    """
    if config.overlap or config.parallel.pull_steps is not None:
        return 0  # others than those that learn act
    if ":" in config.model:
        return 0  # its layers may be other ones
    if device.type != "cpu" or agent.capture is not EAGER:
        return 0
    if not isinstance(learner, A2C | PPO) or not isinstance(agent.model, ImageNetwork):
        return 0
    return agent.model.num_layers if isinstance(learner, A2C) else 1


def make_sampler(
    config: TrainConfig, share: SamplerConfig, seed: int, device: torch.device, ranks: Ranks
) -> RolloutSampler:
    """This learner's simulators; with others on the machine, it keeps to its share of the cores.

    ``share``: its sampler settings. ``seed``: of all learners together.
    """
    factory = factory_of(config)
    seed = rank_seed(seed, ranks.rank)
    on_gpu = device.type == "cuda"
    nodes = tuple(gpu_nodes(ranks.local_size, num_gpus(config))) if on_gpu else None
    seat = Seat(ranks.local_rank, ranks.local_size, nodes)
    cpus = list(config.cpus) or None
    sampler: RolloutSampler
    if config.serial:
        sampler = SerialSampler(factory, config=share, seed=seed)
    else:
        sampler = ParallelSampler(
            factory, config=share, seed=seed, cpus=cpus, drives_gpu=on_gpu, seat=seat
        )
    if ranks.local_size > 1 and config.sampler.affinity != "off":
        # All of it, as the server of no GPU has: one core is too little for evaluations.
        os.sched_setaffinity(0, plan_cores(cpus=cpus, **seat._asdict()).server_cpus)
    return sampler


def _sampler_state(saved: Mapping[str, Any]) -> SamplerState | None:
    if saved["sampler"] is None:
        return None
    return SamplerState(**decode_state(saved["sampler"].numpy().tobytes()))
