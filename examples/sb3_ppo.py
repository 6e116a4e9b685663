"""Stable-Baselines3's PPO on our workers.

pip install "accel_rl[sb3]"
python examples/sb3_ppo.py [TOTAL_STEPS]
"""

from __future__ import annotations

import sys

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from accel_rl.vector import SB3VecEnv, VectorEnv


def main(total_steps: int = 20_000) -> float:
    """Trains on Catch, and returns the mean return of 100 episodes, at best 1."""
    torch.set_num_threads(1)
    env = SB3VecEnv(VectorEnv("catch", 16, autoreset_mode="SameStep"))
    model = PPO(
        "MlpPolicy",
        env,
        learning_rate=2e-3,
        n_steps=64,
        batch_size=256,
        n_epochs=5,
        seed=0,
        device="cpu",
    )
    model.learn(total_steps)
    mean_return, _ = evaluate_policy(model, env, n_eval_episodes=100)
    print(f"mean return {mean_return:.2f}")
    env.close()
    return float(mean_return)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
