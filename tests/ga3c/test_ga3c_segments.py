"""Segments and their n-step returns, against steps played by hand one environment at a time."""

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from batches import LoopBatch
from queued_play import Step, expected_segments
from toy_envs import ScriptedEnv

from accel_rl.envs.base import StepResult
from accel_rl.ga3c.segments import Segment, Segments
from accel_rl.rollout import Rollout, truncate_running
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.block import BlockArrays, Carry
from accel_rl.samplers.make_block import make_block

GAMMA = 0.9
GAMES = ["." * k + end for k, end in product(range(7), ["t", "c", "b", "l.c", "lt"])]


def probability_of(version: np.ndarray | int, columns: np.ndarray) -> np.ndarray:
    """A number of its own for each step, in place of a probability."""
    return (version + columns / 1024).astype(np.float32)


def as_tuples(segment: Segment) -> list[tuple]:
    fields = (segment.observation, segment.action, segment.return_, segment.version)
    told = probability_of(segment.version, segment.observation[:, 1] // 1000)
    assert segment.behaviour_probability.tolist() == told.tolist()
    return list(zip(*(field.tolist() for field in fields), strict=True))


class MarkedEnv(ScriptedEnv):
    """Tells its column in the thousands of the second number."""

    def __init__(self, column: int, game: str) -> None:
        super().__init__(game)
        self.mark = 1000 * column

    def reset(self, out: np.ndarray) -> None:
        super().reset(out)
        out[1] += self.mark

    def step(self, action: int, out: np.ndarray) -> StepResult:
        result = super().step(action, out)
        out[1] += self.mark
        return result


class Play:
    """Environments that are stepped in this process, each column a game, as agents would."""

    @staticmethod
    def make_envs(column: int, game: str) -> Any:
        return [MarkedEnv(column, game)]

    def __init__(
        self, games: list[str], horizon: int, bootstrap_on_truncation: bool = True
    ) -> None:
        B = len(games)
        config = SamplerConfig(num_envs=B, horizon=horizon + 1, num_groups=1)
        spec = config.rollout_spec(ScriptedEnv.spec)
        self.rollout = Rollout.allocate(spec)
        self.games, self.played = games, [0] * B  # letters of the running games
        self.steps, self.segments = [[] for _ in games], [[] for _ in games]
        carry = Carry(np.zeros((B, 3), np.int64), np.zeros(B, bool))
        arrays = BlockArrays(spec, self.rollout, carry, np.zeros(B, np.int64), self.rollout.info[0])
        self.blocks = [
            make_block(self.make_envs(b, game), slice(b, b + 1), arrays, config, 0)
            for b, game in enumerate(games)
        ]
        self.cutter = Segments(
            self.rollout, horizon, GAMMA, bootstrap_on_truncation=bootstrap_on_truncation
        )
        self.has_stepped = np.zeros(B, bool)
        for b in range(B):
            self.start(b)

    def start(self, b: int) -> None:
        self.blocks[b].start(len(self.rollout.action))
        self.cutter.begin(slice(b, b + 1))
        self.has_stepped[b] = False

    def serve(self, columns: np.ndarray, value: np.ndarray, version: int, leaving: int = 0) -> None:
        """One round: cut what ends, choose actions, step. ``value``: enough for all."""
        taken = self.cutter.take(columns, self.has_stepped[columns])
        taken.is_closing[:leaving] = True
        n, m = len(columns), len(taken.final)
        observation = self.cutter.observations(taken)
        assert observation.shape == (n + m, 3)
        value = value[: n + m].astype(np.float32)
        for i, b in enumerate(columns.tolist()):
            if self.steps[b]:
                final = np.flatnonzero(taken.final == i)
                where = n + int(final[0]) if len(final) else i
                last = self.steps[b][-1]
                self.steps[b][-1] = last._replace(value=float(value[where]))
                if last.end == "c" and len(final):
                    behind = [*last.observation[:2], last.observation[2] + 1]
                    assert observation[where].tolist() == behind
        for segment in self.cutter.cut(taken, value):
            self.segments[segment.observation[0, 1] // 1000].append(segment)
        action = observation[:n].sum(axis=1) % 4
        rows = self.cutter.act(taken, action, version, probability_of(version, columns))
        for i, (b, row) in enumerate(zip(columns.tolist(), rows.tolist(), strict=True)):
            is_same_game = self.steps[b] and self.steps[b][-1].observation[0] == observation[i, 0]
            self.played[b] = self.played[b] + 1 if is_same_game else 0
            end, chosen = self.games[b][self.played[b]], int(action[i])
            self.steps[b].append(Step(observation[i].tolist(), chosen, chosen, version, end, 0))
            self.blocks[b].step(row)
            self.has_stepped[b] = True


@pytest.mark.parametrize(
    "horizon, envs_per_agent, bootstrap_on_truncation",
    [(5, 1, True), (3, 3, False), (1, 3, False)],
)
def test_segments_are_those_of_the_paper_wherever_episodes_end(
    horizon, envs_per_agent, bootstrap_on_truncation
):
    games = [game for game in GAMES for _ in range(envs_per_agent)]
    play = Play(games, horizon, bootstrap_on_truncation)
    rng = np.random.default_rng(horizon)
    version = 0
    for _ in range(3 * (horizon + 1)):
        order, cut = rng.permutation(len(GAMES)), int(rng.integers(1, len(GAMES)))
        for agents in (order[:cut], order[cut:], order[:3]):  # some are faster than others
            columns = (agents[:, None] * envs_per_agent + np.arange(envs_per_agent)).ravel()
            version += 1
            play.serve(columns, rng.normal(size=2 * len(columns)), version)
    for b in range(len(games)):
        # The value behind the last step is not known yet, nor its segment cut.
        expected = expected_segments(
            play.steps[b][:-1], horizon, GAMMA, not bootstrap_on_truncation
        )
        found = [as_tuples(segment) for segment in play.segments[b]]
        assert len(found) == len(expected), games[b]
        for mine, theirs in zip(found, expected, strict=True):
            assert [(o, a, v) for o, a, _, v in mine] == [(o, a, v) for o, a, _, v in theirs]
            assert [r for _, _, r, _ in mine] == pytest.approx(
                [r for _, _, r, _ in theirs], rel=1e-5, abs=1e-5
            )


class BatchPlay(Play):
    """Columns are batches that reset in the next step."""

    @staticmethod
    def make_envs(column: int, game: str) -> Any:
        return LoopBatch(1, partial(MarkedEnv, column, game), "next_step")


def test_step_that_resets_is_in_no_segment():
    play = BatchPlay(["...t"] * 2, horizon=3)
    columns, found = np.arange(2), []
    for version in range(30):
        taken = play.cutter.take(columns, play.has_stepped)
        found += play.cutter.cut(taken, np.zeros(2, np.float32))
        action = np.full(2, version % 4)
        rows = play.cutter.act(taken, action, version, probability_of(version, columns))
        for block, row in zip(play.blocks, rows.tolist(), strict=True):
            block.step(row)
        play.has_stepped[:] = True
    own = [as_tuples(each) for each in found if each.observation[0, 1] == 0]
    places = [(*observation, version) for each in own for observation, _, _, version in each]
    # A game takes four steps, in two segments, and a fifth step that resets.
    assert places == [(v // 5 + 1, 0, v % 5, v) for v in range(29) if v % 5 < 4]
    assert [len(each) for each in own] == [3, 1] * 6
    for each in own:  # rewards are the actions; nothing is expected behind a segment
        actions = [action for _, action, _, _ in each]
        returns = [sum(GAMMA**k * a for k, a in enumerate(actions[i:])) for i in range(len(each))]
        assert [return_ for _, _, return_, _ in each] == pytest.approx(returns)


def test_segment_of_one_who_leaves_ends_there_with_the_value_of_what_it_saw():
    play = Play(["........t", "........t"], horizon=5)
    for version in range(3):
        play.serve(np.array([0, 1]), np.zeros(2), version)
    play.serve(np.array([0, 1]), np.array([7.0, 8.0]), 3, leaving=1)
    (segment,) = play.segments[0]
    assert len(segment) == 3 and not play.segments[1]
    assert segment.return_[-1] == pytest.approx(segment.action[-1] + GAMMA * 7)


def test_new_agent_takes_over_nothing_of_the_one_before_it():
    """That one's last step, a game over in the last row, is not the new one's."""
    play = Play(["...t", "........t"], horizon=3)
    for version in range(4):
        play.serve(np.array([0]), np.zeros(1), version)
    assert play.rollout.terminated[3, 0]
    del play.segments[0][:], play.steps[0][:]
    play.start(0)
    for version in range(4, 7):
        play.serve(np.array([1]), np.zeros(1), version)
    play.serve(np.array([0, 1]), np.zeros(2), 7, leaving=1)
    assert [len(segment) for segment in play.segments[1]] == [3]
    assert play.segments[0] == []


@pytest.mark.parametrize(
    "num_steps, bootstrap_on_truncation", [(0, True), (1, False), (2, True), (2, False)]
)
def test_lost_step_is_in_no_segment(num_steps, bootstrap_on_truncation):
    """The steps before it bootstrap from the last observation: it is no time limit."""
    play = Play(["." * 20 + "t"] * 2, 3, bootstrap_on_truncation)
    num_steps += 3  # a whole segment comes first
    for version in range(num_steps):
        play.serve(np.array([0]), np.zeros(1), version)
    play.serve(np.array([0]), np.zeros(1), num_steps)
    row = int(play.cutter._row[0])
    truncate_running(play.rollout, range(1), row, is_done=False, waits=False)
    for version in range(20, 23):
        play.serve(np.array([1]), np.zeros(1), version)
    play.serve(np.array([0, 1]), np.array([0, 0, 5.0]), 30)
    assert [len(segment) for segment in play.segments[1]] == [3]
    kept = play.segments[0][1:]
    assert sum(map(len, kept)) == num_steps - 3
    if kept:
        assert kept[0].return_[-1] == pytest.approx(kept[0].action[-1] + GAMMA * 5)


def test_lost_step_under_a_time_limit_that_ends_the_task_harms_no_other_segment():
    play = Play(["." * 20 + "t"] * 2, horizon=3, bootstrap_on_truncation=False)
    for version in range(4):
        play.serve(np.array([0, 1]), np.zeros(2), version)
    for version in range(4, 6):
        play.serve(np.array([1]), np.zeros(1), version)
    row = int(play.cutter._row[0])
    truncate_running(play.rollout, range(1), row, is_done=False, waits=False)
    play.serve(np.array([0, 1]), np.zeros(3), 9)
    assert [len(segment) for segment in play.segments[0]] == [3]
    assert [segment.version.tolist() for segment in play.segments[1]] == [[0, 1, 2], [3, 4, 5]]
