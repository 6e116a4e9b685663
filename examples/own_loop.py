"""A training loop of your own: A2C on Catch, in one process or in several that learn together.

python examples/own_loop.py [NUM_ROLLOUTS]
torchrun --nproc-per-node 2 examples/own_loop.py [NUM_ROLLOUTS]
"""

import os
import sys

import numpy as np
import torch

from accel_rl import parallel
from accel_rl.algos import A2CConfig, LearnerSpec, NetworkSpec
from accel_rl.samplers import ActionServer, ParallelSampler
from accel_rl.system.topology import Seat

T, B, DEVICE = 5, 16, torch.device("cpu")  # steps, environments of a rollout
num_rollouts, config = int([*sys.argv, 1000][1]), A2CConfig(lr=3e-3)
ranks = parallel.read_ranks(os.environ)
team = parallel.meet_by_store(ranks)
team.open_group()  # without torchrun, team.group stays None
seed, seat = parallel.rank_seed(0, ranks.rank), Seat(ranks.local_rank, ranks.local_size)
torch.manual_seed(0)
torch.set_num_threads(1)
with ParallelSampler("catch", num_envs=B, horizon=T, seed=seed, seat=seat) as sampler:
    agent = config.make_agent(NetworkSpec("auto", sampler.env_spec, DEVICE))
    parts = parallel.FlatParameters(agent.model), config.rule, config.max_gradient_norm
    group = team.group
    sync = parallel.AllReduce(*parts, group) if group else parallel.Local(*parts)
    task = LearnerSpec(sampler.env_spec, B, T, seed, ranks)
    learner = config.make_learner(agent, sync, task)
    with ActionServer(agent, sampler, DEVICE) as server:
        for i in range(num_rollouts):
            sampler.collect(server)  # fills the rollout [T, B] in shared memory
            learner.update(server.finish(), progress=i / num_rollouts)
    returns = [episode.episode_return for episode in sampler.take_episodes()]
first, last = np.mean(returns[:100]), np.mean(returns[-300:])
print(f"learner {ranks.rank}: mean return {first:.2f} at first, mean return {last:.2f}")
print(f"learner {ranks.rank}: parameters {parallel.fingerprint(parts[0]):08x}")
team.close()
