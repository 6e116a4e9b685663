"""Optuna searches for the settings of A2C on Catch, and gives up bad trials early.

``python examples/optuna_search.py 20`` runs 20 trials; it needs ``pip install "accel_rl[optuna]"``.
Optuna samples each trial's settings from the scores of the trials before it. The rows of metrics
report the score while a trial runs, so that Optuna can prune it.
"""

import os
import sys
from collections.abc import Mapping

import optuna

import accel_rl


def objective(trial: optuna.Trial) -> float:
    """Train with the settings of ``trial``; return the mean score of the last episodes."""

    def watch(row: Mapping[str, float]) -> bool:
        trial.report(row["episode_return_raw_mean"], int(row["steps"]))
        return trial.should_prune()  # True ends the run, which saves first

    run = accel_rl.train(
        "a2c",
        env="catch",
        total_steps=12_000,
        lr=trial.suggest_float("lr", 1e-5, 1e-1, log=True),
        entropy_coefficient=trial.suggest_float("entropy_coefficient", 1e-4, 1e-1, log=True),
        num_workers=0,
        tracker=[],
        log_interval=2_000,
        run_dir=f"runs/optuna/{trial.study.study_name}/{trial.number}",
        on_row=watch,
        quiet=True,
    )
    if trial.should_prune():
        raise optuna.TrialPruned
    return run.score


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
