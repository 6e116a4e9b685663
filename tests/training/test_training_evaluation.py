"""Evaluations while a run goes on: the last one of all, and where they play."""

import copy
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from by_files import rewrite
from run_files import rows_of
from saved_runs import trained
from torch.distributed import HashStore

from accel_rl.__main__ import main
from accel_rl.cli.parse import parse_arguments
from accel_rl.ga3c.versions import VersionSync
from accel_rl.parallel import ALONE, FlatParameters, Ranks, Team
from accel_rl.runs.checkpoint import (
    FORMAT,
    best_path,
    list_checkpoints,
    load_checkpoint,
    save_if_best,
)
from accel_rl.samplers import SerialSampler
from accel_rl.sweeps.plan import plan_runs
from accel_rl.sweeps.queue import is_finished
from accel_rl.system.stopping import Interrupted, StopRequest
from accel_rl.tools.evaluate import EvaluateOptions, evaluate_run
from accel_rl.tools.policy import load_policy
from accel_rl.training import evaluation, records
from accel_rl.training.build import agent_of
from accel_rl.training.evaluation import (
    Evaluator,
    lacks_last_evaluation,
    make_evaluation_sampler,
    with_game_limit,
)
from accel_rl.training.records import Records
from accel_rl.training.train import RunError

EVALUATED = {"evaluation_interval": "500", "evaluation_steps": "50"}
SMALL = {"env": "catch", "num_workers": "0", "total_steps": "1000", "checkpoint_interval": "1000"}

BRIEF = ("env=catch", "evaluation_interval=20", "evaluation_steps=20", "log_interval=100")


@pytest.fixture(autouse=True)
def few_environments(monkeypatch) -> None:
    monkeypatch.setattr(evaluation, "EVALUATION_ENVS", 3)


@pytest.mark.slow
@pytest.mark.parametrize("kept_rows", [0, 1])
def test_last_evaluation_that_was_cut_off_is_made_on_resume(kept_rows: int, tmp_path) -> None:
    run_dir, options = tmp_path / "run", SMALL | EVALUATED
    (planned,) = plan_runs(options)
    assert (
        main(["train", *(f"{key}={value}" for key, value in options.items()), f"run_dir={run_dir}"])
        == 0
    )
    assert is_finished(planned, run_dir)
    table = run_dir / "evaluation.csv"
    lines = table.read_text().splitlines(keepends=True)
    assert len(lines) == 3
    assert "evaluation after 1,040 steps: score " in (run_dir / "train.log").read_text()
    table.write_text("".join(lines[: 1 + kept_rows]) if kept_rows else "")
    assert not is_finished(planned, run_dir)
    (checkpoint,) = list_checkpoints(run_dir)
    evaluator = {"steps": 500 * kept_rows, "number": kept_rows}
    rewrite(checkpoint, load_checkpoint(checkpoint) | {"evaluator": evaluator})
    assert main(["train", f"resume={run_dir}"]) == 0
    assert is_finished(planned, run_dir)
    assert table.read_text().splitlines(keepends=True)[-1] == lines[2] or not kept_rows
    assert main(["train", f"resume={run_dir}"]) == 1  # all is done


@pytest.mark.slow
def test_longer_run_makes_each_evaluation_once(tmp_path, monkeypatch) -> None:
    """The last checkpoint is due with the last evaluation, which it knows of all the same."""
    evaluated, evaluate = [], Evaluator.evaluate

    def note(self: Evaluator, steps: int, stop: StopRequest) -> dict[str, float]:
        evaluated.append(steps)
        return evaluate(self, steps, stop)

    monkeypatch.setattr(Evaluator, "evaluate", note)
    run_dir = trained(tmp_path / "run", *BRIEF, "checkpoint_interval=20", "total_steps=40")
    assert main(["train", f"resume={run_dir}", "total_steps=60"]) == 0
    assert evaluated == [20, 40, 60]
    rows = rows_of(run_dir / "evaluation.csv")
    assert [row["steps"] for row in rows] == ["20", "40", "60"]


def test_failure_after_an_evaluation_leaves_the_checkpoint_of_that_step(
    tmp_path, monkeypatch
) -> None:
    """What can be saved then may lack the simulators."""
    saved, collect, save = [], SerialSampler.collect, records.save_checkpoint

    def fail(self: SerialSampler, policy: Any) -> None:
        if saved and self.config.num_envs != 3:  # those of the evaluation
            raise RuntimeError("no more")
        collect(self, policy)

    def note(run_dir: Path, steps: int, *rest: Any, **more: Any) -> None:
        saved.append(steps)
        save(run_dir, steps, *rest, **more)

    monkeypatch.setattr(SerialSampler, "collect", fail)
    monkeypatch.setattr(records, "save_checkpoint", note)
    with pytest.raises(RunError, match="no more"):
        trained(tmp_path, *BRIEF, "num_envs=4", "checkpoint_interval=20", "total_steps=40")
    assert saved == [20]
    assert len(rows_of(tmp_path / "evaluation.csv")) == 1


def test_last_row_is_there_before_the_last_evaluation_begins(tmp_path: Path, monkeypatch) -> None:
    """It takes minutes, in which the run may be killed."""
    seen, evaluate = [], Evaluator.evaluate

    def look(evaluator: Evaluator, steps: int, stop: StopRequest) -> dict[str, float]:
        seen.append((steps, rows_of(tmp_path / "metrics.csv")[-1]["steps"]))
        return evaluate(evaluator, steps, stop)

    monkeypatch.setattr(Evaluator, "evaluate", look)
    trained(tmp_path, *BRIEF[:1], "evaluation_interval=40", *BRIEF[2:])
    assert seen == [(40, "40")]


def test_run_too_short_for_an_evaluation_lacks_none(tmp_path: Path) -> None:
    for interval, lacks in ((0, False), (2000, False), (1000, True)):
        options = ["env=catch", "total_steps=1500", f"evaluation_interval={interval}"]
        config = parse_arguments(options)
        assert lacks_last_evaluation(tmp_path, config) == lacks


def test_evaluations_play_the_policy_for_evaluations() -> None:
    options = ["algo=dqn", "env=saved_runs:Pay", "num_workers=0", "evaluation_steps=60"]
    config = parse_arguments([*options, "learner.epsilon_evaluation=0"])
    agent = agent_of(config, config.probe_spec(), torch.device("cpu"))
    assert agent.epsilon.item() == 1.0
    evaluator = Evaluator(config, agent, torch.device("cpu"), Team(ALONE, HashStore(), 1.0))
    row = evaluator.evaluate(0, Asked())
    assert row["episodes"] > 10 and row["episode_return_raw_std"] == 0


def test_games_of_an_evaluation_have_a_limit_of_their_own() -> None:
    config = parse_arguments(["env=pong", "max_episode_steps=100"])
    assert with_game_limit(config).atari.max_episode_steps == 27_000


class Asked:
    """Somebody asks for a stop when so many rollouts of an evaluation are played; None: never."""

    def __init__(self, after: int | None = None) -> None:
        self.received, self._left = signal.SIGTERM, after

    def is_asked(self) -> bool:
        if self._left is not None:
            self._left -= 1
        return self._left is not None and self._left < 0


def evaluated_by(
    num: int, stops: dict[int, int] | None = None, evaluations: int = 2, *more: str
) -> Any:
    """What each of ``num`` learners, threads here, gets: rows, or None where it broke off."""
    store = HashStore()
    options = ["evaluation_interval=1", "evaluation_steps=100", *more]
    config, cpu = parse_arguments(["env=catch", "num_workers=0", *options]), torch.device("cpu")
    teams = [Team(Ranks(rank, num, rank, num), store, 30.0) for rank in range(num)]
    torch.manual_seed(0)
    agents = [agent_of(config, config.probe_spec(), cpu)]
    agents += [copy.deepcopy(agents[0]) for _ in range(num - 1)]

    def play(team: Team) -> list[dict[str, float] | None]:
        evaluator = Evaluator(config, agents[team.ranks.rank], cpu, team)
        rows: list[dict[str, float] | None] = []
        for number in range(evaluations):
            stop: Any = Asked((stops or {}).get(team.ranks.rank))
            try:
                rows.append(evaluator.evaluate(number, stop))
            except Interrupted:
                rows.append(None)
        return rows

    with ThreadPoolExecutor(num) as threads:
        rows = list(threads.map(play, teams))
    assert all(not messages for messages in teams[0].read(waits=False).values())
    return rows


def test_learners_in_step_share_the_games_of_an_evaluation(monkeypatch) -> None:
    made: list[tuple[int, tuple[int, ...]]] = []
    numbers: list[int] = []

    def note(config: Any, num_envs: int, seeds: np.random.SeedSequence, *rest: Any, **more: Any):
        made.append((num_envs, seeds.spawn_key))
        numbers.append(more["first_env"])
        return make_evaluation_sampler(config, num_envs, seeds, *rest, **more)

    monkeypatch.setattr(evaluation, "make_evaluation_sampler", note)
    (alone,) = evaluated_by(1)
    assert made == [(3, (0,)), (3, (1,))]
    made.clear()
    numbers.clear()
    first, second, third, last = evaluated_by(4)  # the last has no environment
    assert sorted(numbers) == [0, 0, 1, 1, 2, 2]
    assert sorted(made) == [(1, key) for key in ((0,), (0, 1), (0, 2), (1,), (1, 1), (1, 2))]
    for number in range(2):
        # A game of Catch has 9 steps, and an environment goes on until it has 34.
        assert first[number]["evaluation_steps"] == alone[number]["evaluation_steps"] == 3 * 36
        assert first[number]["episodes"] == alone[number]["episodes"] == 3 * 4
        own = [each[number]["episodes"] for each in (second, third, last)]
        assert own == [4, 4, 0]
    assert first == evaluated_by(4)[0]


@pytest.mark.parametrize("num_episodes", [2, 7])
def test_learners_in_step_play_so_many_games_together(num_episodes: int) -> None:
    option = f"evaluation_episodes={num_episodes}"
    own = [[row["episodes"] for row in rows] for rows in evaluated_by(4, None, 1, option)]
    assert own[0] == [num_episodes] and sorted(own[1:]) == sorted(
        [[num_episodes // 3 + (rank < num_episodes % 3)] for rank in (1, 2)] + [[0]]
    )
    assert evaluated_by(1, None, 1, option)[0][0]["episodes"] == num_episodes


@pytest.mark.parametrize("who", [0, 1])
def test_evaluation_that_one_learner_breaks_off_is_none(who: int) -> None:
    """And leaves nothing behind that would be taken for the next one's games."""
    first, second = evaluated_by(2, {who: 1})
    assert first == [None, None]
    assert (second == [None, None]) == (who == 1)


class Scripted:
    """Evaluations that are made, but whose scores are ``scores``, and which policies had them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
        self.policies: list[tuple[int, dict[str, torch.Tensor]]] = []
        play = Evaluator.evaluate

        def evaluate(evaluator: Evaluator, steps: int, stop: StopRequest) -> dict[str, float]:
            state = evaluator._agent.model.state_dict()
            self.policies.append((steps, {name: each.clone() for name, each in state.items()}))
            score = scores[min(len(self.policies), len(scores)) - 1]
            return play(evaluator, steps, stop) | {"episode_return_raw_mean": score}

        monkeypatch.setattr(Evaluator, "evaluate", evaluate)

    def check(self, run_dir: Path, number: int, score: float) -> None:
        """That evaluation's policy is what was kept."""
        steps, parameters = self.policies[number]
        saved = load_checkpoint(best_path(run_dir))
        assert (saved["counts"]["steps"], saved["score"]) == (steps, score)
        assert saved["learner"]["parameters"].keys() == parameters.keys()
        for name, found in saved["learner"]["parameters"].items():
            assert torch.equal(found, parameters[name])


def test_policy_of_the_best_evaluation_is_kept(tmp_path, monkeypatch) -> None:
    """A score of no game is none, and an equal one is no better."""
    scripted = Scripted(monkeypatch, [np.nan, -2.0, 3.0, 1.0, 3.0])
    run_dir = trained(tmp_path / "run", *BRIEF, "total_steps=100")
    assert len(scripted.policies) == 5
    scripted.check(run_dir, 2, 3.0)


@pytest.mark.slow
def test_policy_of_the_best_evaluation_is_kept_where_the_run_goes_on(tmp_path, monkeypatch) -> None:
    scripted = Scripted(monkeypatch, [np.nan, 3.0, 1.0, 3.0])
    run_dir = trained(tmp_path / "run", *BRIEF, "total_steps=20")
    assert not best_path(run_dir).exists()
    with pytest.raises(ValueError, match="keeps none; a run keeps that of its best evaluation"):
        load_policy(run_dir, "best")
    for total_steps, number in ((60, 1), (80, 1)):
        assert main(["train", f"resume={run_dir}", f"total_steps={total_steps}"]) == 0
        scripted.check(run_dir, number, 3.0)
    small = EvaluateOptions(checkpoint="best", num_steps=20, num_envs=2, num_workers=0)
    assert evaluate_run(run_dir, small).checkpoint_steps == scripted.policies[1][0]


@pytest.mark.processes
@pytest.mark.slow
def test_policy_of_the_best_evaluation_is_kept_with_ga3c(tmp_path, monkeypatch) -> None:
    """Not a newer one, which trainers have made meanwhile."""
    play, evaluate = Evaluator._play, Records.evaluate
    syncs: list[VersionSync] = []

    def play_and_push(evaluator: Evaluator, *arguments: Any) -> dict[str, float]:
        state = syncs[0].state_dict()
        for each in state["parameters"].values():
            each += 1.0
        syncs[0].versions.load_state_dict(syncs[0].parameters, state)
        return play(evaluator, *arguments)

    def note(own: Records, *arguments: Any) -> None:
        sync = own._sync
        assert isinstance(sync, VersionSync)
        syncs.append(sync)
        evaluate(own, *arguments)

    monkeypatch.setattr(Evaluator, "_play", play_and_push)
    monkeypatch.setattr(Records, "evaluate", note)
    scripted = Scripted(monkeypatch, [1.0])
    options = (
        "algo=ga3c env=catch model=mlp tuner=false num_envs=4 num_workers=none total_steps=600"
    )
    evaluated = "evaluation_interval=500 evaluation_steps=50"
    scripted.check(trained(tmp_path, *options.split(), *evaluated.split()), 0, 1.0)


@pytest.mark.slow
def test_best_that_cannot_be_read_is_replaced_and_other_words_are_refused(tmp_path) -> None:
    run_dir = trained(tmp_path, *BRIEF, "total_steps=20")
    best_path(run_dir).write_bytes(b"")
    assert main(["train", f"resume={run_dir}", "total_steps=40"]) == 0
    assert load_checkpoint(best_path(run_dir))["counts"]["steps"] == 40
    with pytest.raises(ValueError, match="checkpoint is 'worst'; it must be an integer"):
        load_policy(run_dir, "worst")


def test_best_policy_is_finite_and_replaces_what_is_none(tmp_path) -> None:
    parameters = FlatParameters(torch.nn.Linear(1, 1))
    save_if_best(tmp_path, 1, 5.0, parameters)
    for steps, score in ((2, 4.0), (3, 5.0)):
        save_if_best(tmp_path, steps, score, parameters)
    assert load_checkpoint(best_path(tmp_path))["counts"]["steps"] == 1
    parameters.parameter[0] = torch.nan  # learning has diverged, which no row has told yet
    save_if_best(tmp_path, 2, 6.0, parameters)
    assert load_checkpoint(best_path(tmp_path))["counts"]["steps"] == 1
    parameters.parameter[0] = 0.0
    rewrite(best_path(tmp_path), {"format": FORMAT})  # a checkpoint, but of no evaluation
    save_if_best(tmp_path, 3, 1.0, parameters)
    assert load_checkpoint(best_path(tmp_path))["counts"]["steps"] == 3
