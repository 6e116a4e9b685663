"""Optuna searches for the settings of A2C on Catch, and gives up bad trials early.

``python examples/optuna_search.py 20`` runs 20 trials; it needs ``pip install "accel_rl[optuna]"``.
Optuna samples each trial's settings from the scores of the trials before it. The rows of metrics
report the score while a trial runs, so that Optuna can prune it.
"""

import os
import sys

import optuna

from accel_rl.cli.parse import parse_arguments
from accel_rl.system.lasting_console import LastingConsole
from accel_rl.training.train import train


def objective(trial: optuna.Trial) -> float:
    """Train with the settings of ``trial``; return the mean score of the last episodes."""
    lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
    entropy = trial.suggest_float("entropy_coefficient", 1e-4, 1e-1, log=True)
    config = parse_arguments(
        [
            *("algo=a2c", "env=catch", "num_workers=0", "learners=1", "tracker=[]"),
            *("total_steps=12000", "log_interval=2000"),
            *(f"learner.lr={lr}", f"learner.entropy_coefficient={entropy}"),
            f"run_dir=runs/optuna/{trial.study.study_name}/{trial.number}",
        ]
    )
    last = float("nan")

    def watch(row: dict[str, float]) -> bool:
        nonlocal last
        last = row["episode_return_raw_mean"]
        trial.report(last, int(row["steps"]))
        return trial.should_prune()  # True ends the run, which saves first

    result = train(config, LastingConsole(quiet=True), on_row=watch)
    if result.is_cut:
        raise optuna.TrialPruned
    return last


if __name__ == "__main__":
    num_trials = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    pruner = optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=4000)
    sampler = optuna.samplers.TPESampler(seed=0)
    study = optuna.create_study(
        study_name=f"catch-{os.getpid()}", direction="maximize", sampler=sampler, pruner=pruner
    )
    study.optimize(objective, n_trials=num_trials)
    states = [trial.state.name for trial in study.trials]
    print(f"{states.count('COMPLETE')} trials were finished, {states.count('PRUNED')} pruned")
    print(f"mean return {study.best_value:.2f} with {study.best_params}")
