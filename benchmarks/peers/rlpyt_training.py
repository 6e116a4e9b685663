"""rlpyt's A2C, PPO or DQN training on an Atari game, in any interpreter that has it.

Its own environment, whose images are ours, 104 x 80; our layers, rollout, minibatches and replay;
its alternating sampler, in which one half of the environments steps while the other gets actions.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness.children import read_spec, serve_within, versions

FOREVER = 10**12  # steps; nothing is logged before


def main() -> None:
    """Runs its trainer, measured after every iteration."""
    spec = read_spec()
    from rlpyt.envs.atari.atari_env import AtariEnv, AtariTrajInfo
    from rlpyt.runners.minibatch_rl import MinibatchRl
    from rlpyt.samplers.parallel.gpu.alternating_sampler import AlternatingSampler

    work, cpus = spec["work"], spec["cpus"]
    said = {"num_envs": work["num_envs"], "versions": versions("rlpyt", "torch", "atari-py")}
    reached = serve_within(said)
    steps = work["num_envs"] * work["horizon"]

    class Runner(MinibatchRl):  # type: ignore[misc]
        """Measured after every iteration in which it learned."""

        def store_diagnostics(self, itr: int, traj_infos: Any, opt_info: Any) -> None:
            super().store_diagnostics(itr, traj_infos, opt_info)
            if (itr + 1) * steps > work.get("min_steps", 0):
                reached((itr + 1) * steps)

    sampler = AlternatingSampler(
        EnvCls=AtariEnv,
        env_kwargs={"game": spec["game"]},
        TrajInfoCls=AtariTrajInfo,
        batch_T=work["horizon"],
        batch_B=work["num_envs"],
        max_decorrelation_steps=0,
    )
    algorithm, agent = _make_learner(spec)
    affinity = {
        "cuda_idx": 0 if spec["device"] == "cuda" else None,
        "workers_cpus": [*cpus, *cpus],  # the first half of the workers, then the second
        "master_cpus": cpus,
        "master_torch_threads": spec["torch_threads"],
        "alternating": True,
        "set_affinity": True,
    }
    runner = Runner(
        algo=algorithm,
        agent=agent,
        sampler=sampler,
        n_steps=FOREVER,
        log_interval_steps=FOREVER,
        affinity=affinity,
        seed=spec["seed"],
    )
    runner.train()
    raise RuntimeError("rlpyt has ended by itself")


def _make_learner(spec: dict[str, Any]) -> tuple[Any, Any]:
    network, work = spec["network"], spec["work"]
    channels, kernels, strides, paddings = (
        list(column) for column in zip(*network["convs"], strict=True)
    )
    layers = {"channels": channels, "kernels": kernels, "strides": strides, "paddings": paddings}
    layers["fc_sizes"] = network["hidden"]
    if spec["algo"] == "dqn":
        from rlpyt.agents.dqn.atari.atari_dqn_agent import AtariDqnAgent
        from rlpyt.algos.dqn.dqn import DQN

        algorithm = DQN(  # each step is learned from eight times, as ours
            batch_size=work["batch_size"],
            replay_size=work["replay_size"],
            min_steps_learn=work["min_steps"],
        )
        return algorithm, AtariDqnAgent(model_kwargs=layers)

    from rlpyt.agents.pg.atari import AtariFfAgent

    agent = AtariFfAgent(model_kwargs=layers)
    if spec["algo"] == "a2c":
        from rlpyt.algos.pg.a2c import A2C

        return A2C(), agent
    from rlpyt.algos.pg.ppo import PPO

    return PPO(minibatches=work["num_minibatches"], epochs=work["num_epochs"]), agent


if __name__ == "__main__":
    main()
