"""Runs built from their configs. No process and no file is made here."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

from accel_rl.agents import Agent
from accel_rl.algos import LearnerSpec, NetworkSpec
from accel_rl.algos.learner import check_learner
from accel_rl.config import TrainConfig
from accel_rl.envs import EnvSpec
from accel_rl.envs.batched import numbered
from accel_rl.envs.make import probe_observations
from accel_rl.graphs import Graphs
from accel_rl.parallel import (
    Adam,
    AllReduce,
    FlatParameters,
    GradientSync,
    Local,
    MultiStepAdam,
    Ranks,
    StoreSync,
    Team,
    create_store,
    open_store,
    rank_seed,
    share_running,
)
from accel_rl.samplers import ActionServer, ParallelSampler, SamplerConfig, SerialSampler
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.system.topology import Seat, plan_cores
from accel_rl.training.devices import gpu_nodes, graphs_of, learner_device, make_graphs, num_gpus
from accel_rl.training.evaluation import EVALUATION_ENVS, Evaluator
from accel_rl.training.initial import take_initial
from accel_rl.training.overlap import Overlapped
from accel_rl.training.rollouts import PullingServer, RolloutRun
from accel_rl.training.run import ALONE, Run
from accel_rl.training.torch_setup import has_small_updates, num_learning_threads


def build(config: TrainConfig, saved: Mapping[str, Any] | None = None, team: Team = ALONE) -> Run:
    """Build a run, new or from the checkpoint ``saved``, for one learner of ``team``.

    Raises:
        ValueError: the config cannot be had here; the message says what can.
        TeamError: another learner is gone.
    """
    seed = config.seed
    if saved is not None and saved["sampler"] is None:
        # Its simulators start anew, and shall not repeat what they did at the start of the run.
        seeds = np.random.SeedSequence([config.seed, int(saved["counts"]["steps"])])
        seed = int(seeds.generate_state(1)[0])
    if config.learner.in_rollouts:
        return build_rollouts(config, seed, team)
    run: Run = import_module("accel_rl.ga3c.run").build_queued(config, seed, team)
    return run


def build_rollouts(config: TrainConfig, seed: int, team: Team = ALONE) -> RolloutRun:
    """Build a run of an algorithm that learns from rollouts; ``seed`` is of the simulators."""
    ranks = team.ranks
    device = learner_device(config, ranks)
    graphs = make_graphs(config, device)
    sampler = make_sampler(config, sampler_share(config, ranks), seed, device, ranks)
    with contextlib.ExitStack() as undo:
        undo.callback(sampler.close)
        spec = sampler.env_spec
        torch.manual_seed(config.seed)
        num_training = ranks.size * sampler.rollout_spec.B
        tried = num_training + EVALUATION_ENVS + ranks.rank
        agent = agent_of(config, spec, device, graphs=graphs, env_index=tried)
        initial = take_initial(config, agent)
        sync = make_sync(config, agent, team)
        share, learner_seed = sampler.config, rank_seed(config.seed, ranks.rank)
        sizes = share.num_envs, share.horizon
        task = LearnerSpec(
            spec, *sizes, learner_seed, ranks, config.schedule_steps or config.total_steps
        )
        learner = config.learner.make_learner(agent, sync, task)
        check_learner(learner)
        initial.give_moments(learner)
        evaluator = None
        is_apart = config.parallel.sync == "store"
        if config.evaluation_interval and (ranks.is_first or not is_apart):
            players = ALONE if is_apart else team
            evaluator = Evaluator(config, agent, device, players, num_training)
        num_collected = share.num_envs * share.horizon
        is_small = has_small_updates(config, num_collected, sync)
        server: ActionServer
        overlapped, num_threads, pull_steps = None, 1, config.parallel.pull_steps
        if config.overlap:
            overlapped = Overlapped(sampler, agent, learner, sync, is_small=is_small)
            server = overlapped.server
        else:
            num_threads = num_learning_threads(is_small=is_small)
            if isinstance(sync, StoreSync) and pull_steps is not None:
                server = PullingServer(agent, sampler, device)
                server.pull_from(sync, pull_steps, learns_newest=config.learner.uses_ratios)
            else:
                server = ActionServer(agent, sampler, device)
        undo.pop_all()
    return RolloutRun(
        config=config,
        team=team,
        device=device,
        sampler=sampler,
        agent=agent,
        learner=learner,
        sync=sync,
        evaluator=evaluator,
        server=server,
        overlapped=overlapped,
        num_threads=num_threads,
        initial=initial.text,
    )


def agent_of(
    config: TrainConfig,
    spec: EnvSpec,
    device: torch.device,
    *,
    graphs: Graphs | None = None,
    env_index: int = 0,
) -> Agent:
    """Make the agent that ``config`` asks for, with new parameters on ``device``.

    A network of the user's own is tried on observations of the environment: others may have
    numbers in them that it need not take. ``env_index``: the number of that environment, which is
    no other's that lives.
    """
    observations, model = None, config.model
    if ":" in model:
        factory = numbered(config.env_factory, env_index)
        observations = probe_observations(factory)
    network = NetworkSpec(
        model,
        spec,
        device,
        config.memory,
        graphs,
        observations,
        config.previous_action_reward,
    )
    agent = config.learner.make_agent(network)
    agent.graphs = graphs_of(config, agent.model, graphs)
    return agent


def make_sync(config: TrainConfig, agent: Agent, team: Team) -> GradientSync:
    """Return the sync of the parameters of ``agent``. Every learner of the team must call it."""
    flat = FlatParameters(agent.model)
    learner = config.learner
    rule, max_norm = learner.rule, learner.max_gradient_norm
    parallel = config.parallel
    if parallel.sync == "store":
        timeout = team.timeout_seconds
        if team.ranks.is_first:
            store = create_store(flat, rule, timeout_seconds=timeout)
            team.share("store", store.address)
        else:
            store = open_store(team.share("store"), flat, rule, timeout)
        if parallel.sync_period == 1:
            sync = StoreSync(flat, store, rule, max_norm)
        else:
            assert isinstance(rule, Adam)
            period = parallel.sync_period
            sync = MultiStepAdam(flat, store, rule, max_norm, period)
        sync.running = partial(share_running, team)
        return sync
    if team.ranks.size > 1:
        assert team.group is not None, "open_group comes first"
        return AllReduce(flat, rule, max_norm, team.group)
    return Local(flat, rule, max_norm)


def sampler_share(config: TrainConfig, ranks: Ranks) -> SamplerConfig:
    """Return one learner's sampler settings: its part of the environments, or all with a store."""
    if config.parallel.sync == "store":
        return config.sampler
    num_envs = config.sampler.num_envs // ranks.size
    return dataclasses.replace(config.sampler, num_envs=num_envs)


def make_sampler(
    config: TrainConfig, share: SamplerConfig, seed: int, device: torch.device, ranks: Ranks
) -> RolloutSampler:
    """Return the simulators of one learner, and pin this process to its share of the cores.

    Args:
        ranks: this learner among all learners. Its environments have numbers after those of the
            learners before it.
    """
    factory = numbered(config.env_factory, ranks.rank * share.num_envs)
    seed = rank_seed(seed, ranks.rank)
    on_gpu = device.type == "cuda"
    nodes = tuple(gpu_nodes(ranks.local_size, num_gpus(config))) if on_gpu else None
    seat = Seat(ranks.local_rank, ranks.local_size, nodes)
    sampler: RolloutSampler
    if share.num_workers == 0:
        sampler = SerialSampler(factory, config=share, seed=seed)
    else:
        sampler = ParallelSampler(factory, config=share, seed=seed, drives_gpu=on_gpu, seat=seat)
    if ranks.local_size > 1 and config.sampler.affinity != "off":
        # All of it, as the server of no GPU has: one core is too little for evaluations.
        os.sched_setaffinity(0, plan_cores(**seat._asdict()).server_cpus)
    return sampler
