"""How games of seaquest end that a trained policy plays: the score depends on it.

    python -m benchmarks.tables.seaquest_ends RUN_DIR...

Plays 40 games with the last checkpoint of each run, as in evaluations and without exploration. The
submarine has air for 200 steps. It gets more at the surface, and only with a diver on board:
surfacing without one ends the game, and so do a lack of air and whatever hits the submarine.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from accel_rl.envs.minatar import MinAtarEnv
from accel_rl.spaces import zeros
from accel_rl.tools.policy import load_policy

GAMES, MAX_STEPS = 40, 5_000
ENDS = ("hit", "no air", "surfaced without a diver", "not yet")


def main(runs: Sequence[str]) -> None:
    """Print a table in Markdown."""
    print(f"| run | actions | return | steps | times surfaced | {' | '.join(ENDS)} |")
    print(f"|{'---|' * (5 + len(ENDS))}")
    for run in runs:
        for greedy in (False, True):
            cells = " | ".join(_play(run, greedy))
            print(f"| {Path(run).name} | {'greedy' if greedy else 'as in evaluations'} | {cells} |")


def _play(run: str, greedy: bool) -> list[str]:
    policy = load_policy(run, greedy=greedy, trust=True)
    envs = [MinAtarEnv("seaquest") for _ in range(GAMES)]
    seeds = np.random.SeedSequence(0).spawn(GAMES)
    observation = zeros(policy.env_spec.observation, GAMES)
    for env, seed, out in zip(envs, seeds, observation, strict=True):
        env.seed(seed)
        env.reset(out)
    returns, lengths, surfaced = np.zeros((3, GAMES))
    ends = ["not yet"] * GAMES
    for _ in range(MAX_STEPS):
        live = [i for i in range(GAMES) if ends[i] == "not yet"]
        if not live:
            break
        actions = policy(observation)
        for i in live:
            game = envs[i]._game
            was_up, oxygen, divers = game.surface, game.oxygen, game.diver_count
            result = envs[i].step(int(actions[i]), observation[i])
            returns[i] += result.reward
            lengths[i] += 1
            if not result.terminated:
                surfaced[i] += game.surface and not was_up
            elif oxygen <= 0:
                ends[i] = "no air"
            else:
                drowned = game.sub_y == 0 and not was_up and divers == 0
                ends[i] = "surfaced without a diver" if drowned else "hit"
    counts = Counter(ends)
    error = returns.std() / GAMES**0.5
    return [
        f"{returns.mean():.1f} ± {error:.1f}",
        f"{lengths.mean():.0f}",
        f"{surfaced.mean():.1f}",
        *(str(counts[end]) for end in ENDS),
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
