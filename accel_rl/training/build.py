"""Runs built from their configs. No process and no file is made here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch

from accel_rl.agents import AnyAgent, is_softmax
from accel_rl.algos import Task
from accel_rl.capture import EAGER
from accel_rl.config import TrainConfig
from accel_rl.models.image import ImageNetwork
from accel_rl.parallel import Ranks, StoreExchange, Team, rank_seed
from accel_rl.samplers import (
    ActionServer,
    ParallelSampler,
    SamplerConfig,
    SerialSampler,
)
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.topology import Seat, plan_cores
from accel_rl.training.agent import agent_of, factory_of
from accel_rl.training.devices import gpu_nodes, learner_device, make_capture, num_gpus
from accel_rl.training.division import sampler_share
from accel_rl.training.evaluation import Evaluator
from accel_rl.training.exchanges import PullingServer, Server, make_exchange
from accel_rl.training.overlap import Overlapped
from accel_rl.training.rollouts import Experience, InTurns, RolloutRun
from accel_rl.training.run import ALONE, Run
from accel_rl.training.torch_setup import has_small_updates, num_learning_threads

AnyRun = Run[Any, Any]


def build(
    config: TrainConfig, saved: Mapping[str, Any] | None = None, team: Team = ALONE
) -> AnyRun:
    """A new run, or one that goes on from the checkpoint ``saved``, as one learner of ``team``.

    Raises:
        ValueError: the config cannot be had here; the message says what can.
        TeamError: another learner is gone.
    """
    seed = config.seed
    if saved is not None and saved["sampler"] is None:
        # Its simulators start anew, and shall not repeat what they did at the start of the run.
        seeds = np.random.SeedSequence([config.seed, int(saved["counts"]["steps"])])
        seed = int(seeds.generate_state(1)[0])
    module, _, name = config.learner.built_by.partition(":")
    make: Callable[[TrainConfig, int, Team], AnyRun] = getattr(import_module(module), name)
    return make(config, seed, team)


def build_rollouts(config: TrainConfig, seed: int, team: Team = ALONE) -> RolloutRun:
    """A run of an algorithm that learns from rollouts. ``seed``: of the simulators."""
    ranks = team.ranks
    device = learner_device(config, ranks)
    capture = make_capture(config, device)
    sampler = make_sampler(config, sampler_share(config, ranks), seed, device, ranks)
    with contextlib.ExitStack() as undo:
        undo.callback(sampler.close)
        spec = sampler.env_spec
        torch.manual_seed(config.seed)
        agent = agent_of(config, spec, device, capture=capture)
        exchange = make_exchange(config, agent, team)
        share, learner_seed = sampler.config, rank_seed(config.seed, ranks.rank)
        task = Task(spec, share.num_envs, share.horizon, learner_seed, ranks)
        learner = config.learner.make_learner(agent, exchange, task)
        evaluator = None
        if config.evaluation_interval and ranks.is_first:
            evaluator = Evaluator(config, agent, device)
        num_collected = share.num_envs * share.horizon
        is_small = has_small_updates(config, num_collected, exchange)
        experience: Experience
        server: Server
        if config.overlap:
            overlapped = Overlapped(sampler, agent, learner, exchange, is_small=is_small)
            experience, server = overlapped, overlapped.server
        else:
            server = make_action_server(config, agent, sampler, device)
            if isinstance(exchange, StoreExchange) and config.parallel.pull_steps is not None:
                server = PullingServer(server, exchange, learner, config.parallel.pull_steps)
            num_threads = num_learning_threads(is_small=is_small)
            experience = InTurns(sampler, server, learner, num_threads)
        undo.pop_all()
    return RolloutRun(
        config=config,
        team=team,
        device=device,
        sampler=sampler,
        agent=agent,
        learner=learner,
        exchange=exchange,
        evaluator=evaluator,
        server=server,
        experience=experience,
    )


def make_action_server(
    config: TrainConfig, agent: AnyAgent, sampler: RolloutSampler, device: torch.device
) -> ActionServer:
    """What acts for ``sampler`` and gives the learner its rollouts."""
    kept_layers = _kept_layers(config, agent, device)
    precision = config.learner.precision if kept_layers else "float32"
    return ActionServer(agent, sampler, device, kept_layers=kept_layers, precision=precision)


def _kept_layers(config: TrainConfig, agent: AnyAgent, device: torch.device) -> int:
    """How many layers' activations to learn from that acting, with the same parameters, has made.

    None on a GPU, where this has not been measured.
    """
    if config.overlap or config.parallel.pull_steps is not None:
        return 0  # others than those that learn act
    if ":" in config.model:
        return 0  # its layers may be other ones
    if device.type != "cpu" or agent.capture is not EAGER:
        return 0
    if not isinstance(agent.model, ImageNetwork) or not is_softmax(agent):
        return 0
    return config.learner.kept_layers(agent.model.num_layers)


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
