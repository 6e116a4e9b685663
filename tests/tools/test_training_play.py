"""One game of a saved run as a film."""

import dataclasses
from pathlib import Path
from typing import Any

import cv2
import gymnasium
import numpy as np
import pytest
from PIL import Image
from refusals import words
from saved_runs import Pay, prefer_action, quiet, trained

from accel_rl.envs import AtariConfig, Batched, EnvError, StepResult, make_env_factory
from accel_rl.spaces import Leaf
from accel_rl.tools import movie as module
from accel_rl.tools.movie import film
from accel_rl.tools.play import Game, PlayOptions, make_shown_env, play


def play_game(run_dir: Path, **options: Any) -> Game:
    return play(run_dir, PlayOptions(**({"overwrite": True} | options)), quiet())


def read_film(path: Path) -> tuple[float, list[np.ndarray]]:
    """Its pictures a second, and its pictures, RGB."""
    video = cv2.VideoCapture(str(path))
    pictures = []
    while (read := video.read())[0]:
        pictures.append(read[1][:, :, ::-1])
    return video.get(cv2.CAP_PROP_FPS), pictures


@pytest.fixture(autouse=True)
def fast_codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """VP9 takes ten times as long."""
    if "browsers" not in request.node.name:
        monkeypatch.setattr(module, "_CODECS", ("mp4v",))


@pytest.fixture(scope="module")
def breakout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(
        tmp_path_factory.mktemp("breakout") / "run", "env=breakout", "max_episode_steps=20"
    )


@pytest.fixture(scope="module")
def pay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = trained(tmp_path_factory.mktemp("pay") / "run", "env=saved_runs:Pay")
    prefer_action(run_dir, 2)
    return run_dir


def test_classic_control_is_filmed_without_a_screen(tmp_path) -> None:
    pytest.importorskip("pygame", reason="of the extra train")
    run_dir = trained(tmp_path / "run", "env=CartPole-v1")
    game = play_game(run_dir)
    rate, pictures = read_film(game.path)
    assert rate == 50.0 and len(pictures) >= game.score  # a point a step
    assert pictures[0].mean() > 200  # a cart and a pole on white


@pytest.mark.slow
def test_atari_game_is_filmed_in_colour_at_each_frame_of_the_emulator(breakout) -> None:
    game = play_game(breakout)
    assert game.path == breakout / "game.mp4"
    assert game.is_over
    rate, pictures = read_film(game.path)
    assert rate == game.frames_per_second == 60
    assert len(pictures) == game.num_frames
    # Four frames a step, and NOOP and FIRE after each of four lost lives.
    assert game.num_frames == 4 * game.num_steps + 4 * 2
    assert pictures[-1].shape == (28 + 420, 320, 3)
    red_bricks = pictures[0][28 + 2 * 60, 160].astype(int)
    assert red_bricks[0] > 150 > red_bricks[2] + 50


@pytest.mark.slow
def test_game_of_another_seed_is_another_and_goes_on_behind_the_limit_of_training(breakout) -> None:
    a, b, c = (play_game(breakout, seed=seed, max_steps=200) for seed in (0, 0, 1))
    assert a == b
    assert (a.score, a.num_steps) != (c.score, c.num_steps)
    assert a.num_steps > 20


def test_filmed_game_is_the_same_as_one_that_is_not_filmed() -> None:
    config = AtariConfig(sticky_actions=0.25)
    shown, _, look = make_shown_env("breakout", config)
    results = []
    for env in (shown, make_env_factory("breakout", config)()):
        out = np.zeros(env.spec.observation_shape, np.uint8)
        env.seed(np.random.SeedSequence(5))
        env.reset(out)
        actions = np.random.default_rng(0).integers(env.spec.num_actions, size=60).tolist()
        played: list[tuple[StepResult, bytes]] = []
        while not (played and played[-1][0].episode_ended) and actions:
            played.append((env.step(actions.pop(), out), out.tobytes()))
        results.append(played)
    assert results[0] == results[1]
    assert len(look(out)) >= 4 * len(results[0])


def test_observation_is_filmed_where_there_is_nothing_else(pay) -> None:
    game = play_game(pay)
    assert (game.score, game.num_steps, game.is_over) == (6.0, 3, True)
    rate, pictures = read_film(game.path)
    assert rate == 5
    assert len(pictures) == 4  # the first observation and three steps
    assert pictures[0].shape == (28 + 4 * 70, 6 * 70, 3)
    assert abs(int(pictures[3][200, 200, 0]) - 102) < 8


def test_greedy_game_takes_the_most_probable_action(tmp_path) -> None:
    run_dir = trained(tmp_path / "run", "env=saved_runs:Pay")
    prefer_action(run_dir, 2, logit=0.1)
    drawn, greedy = (
        {play_game(run_dir, greedy=greedy, seed=seed).score for seed in range(3)}
        for greedy in (False, True)
    )
    assert len(drawn) > 1
    assert greedy == {6.0}


class Cut(Pay):
    """Its time limit is two steps; it is over after three."""

    def step(self, action: int, out: Any) -> StepResult:
        result = super().step(action, out)
        return result._replace(truncated=self.t == 2, episode_ended=self.t >= 2)


class OverAtTheLimit(Pay):
    """It is over in the step of its time limit."""

    def step(self, action: int, out: Any) -> StepResult:
        result = super().step(action, out)
        return result._replace(terminated=self.t == 3, truncated=self.t == 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "max_steps", "expected"),
    [
        ("Pay", 3, (3, True, False)),
        ("Pay", 2, (2, False, False)),
        ("Cut", 3, (2, False, True)),
        ("OverAtTheLimit", 3, (3, True, False)),
    ],
)
def test_end_of_a_game_is_told_from_its_time_limit_and_the_end_of_the_film(
    env: str, max_steps: int, expected: tuple[int, bool, bool], pay, monkeypatch
) -> None:
    monkeypatch.setattr("saved_runs.Pay", globals()[env])
    game = play_game(pay, max_steps=max_steps)
    assert (game.num_steps, game.is_over, game.is_truncated) == expected


@pytest.mark.parametrize(("shape", "newest"), [((2, 4, 6), 1), ((5, 6, 2), (..., 1))])
def test_newest_frame_of_a_stack_is_filmed_whichever_axis_it_is(
    shape: tuple[int, ...], newest: Any, monkeypatch
) -> None:
    spec = dataclasses.replace(Pay.spec, observation=Leaf(shape, np.uint8))
    monkeypatch.setattr(Pay, "spec", spec)
    _, _, look = make_shown_env("saved_runs:Pay", AtariConfig())
    out = np.full(shape, 10, np.uint8)
    out[newest] = 200
    np.testing.assert_array_equal(look(out), np.full((1, 4 if shape[0] == 2 else 5, 6, 3), 200))


def test_actions_of_several_parts_are_drawn_in_a_game(tmp_path) -> None:
    run_dir = trained(tmp_path / "run", "env=control_envs:SwingInParts", "algo=ppo")
    games = [play_game(run_dir, max_steps=3, seed=seed) for seed in (0, 1)]
    assert [game.num_steps for game in games] == [3, 3] and games[0].score != games[1].score


def make_batched() -> Batched:
    return Batched(lambda n: gymnasium.make_vec("CartPole-v1", n))


@pytest.mark.parametrize(
    "env", ["gymnasium-vec:CartPole-v1", "test_training_play:make_batched", "envpool:Pong-v5"]
)
def test_environment_that_is_a_batch_is_not_shown(env: str) -> None:
    with pytest.raises(ValueError, match=words(f"environment {env} is a batch evaluate")):
        make_shown_env(env, AtariConfig())


class Drawn(gymnasium.Env[Any, Any]):
    """Renders the number of the step as a grey level; ends after four."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, **options: Any) -> Any:
        super().reset(**options)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 4, False, {}

    def render(self) -> Any:
        return np.full((300, 421, 3), 50 * self.t, np.uint8)


gymnasium.register("Drawn-v0", Drawn)


def make_drawn() -> Drawn:
    return Drawn("rgb_array")


@pytest.mark.parametrize("env", ["Drawn-v0", "test_training_play:make_drawn"])
def test_gymnasium_environment_is_filmed_as_it_renders(env: str, tmp_path) -> None:
    game = play_game(trained(tmp_path / "run", f"env={env}"))
    rate, pictures = read_film(game.path)
    assert (rate, game.score, game.num_steps) == (25, 4.0, 4)
    assert [round(int(p[100, 100, 0]) / 50) for p in pictures] == [0, 1, 2, 3, 4]
    assert pictures[0].shape == (28 + 300, 422, 3)  # even sides


@pytest.mark.parametrize(
    ("env", "advice"),
    [("counting_env:CountingEnv", ""), ("test_training_play:Drawn", 'render_mode="rgb_array"')],
)
def test_environment_without_pictures_is_refused(env: str, advice: str, tmp_path) -> None:
    run_dir = trained(tmp_path / "run", f"env={env}")
    with pytest.raises(EnvError, match=words(f"cannot be shown no pictures {advice}")):
        play_game(run_dir)


@pytest.mark.parametrize(
    ("render", "said"),
    [
        (lambda self: "a picture", "no picture but a str"),
        (
            lambda self: np.zeros((300, 400 + self.t, 3), np.uint8),
            "shape (300, 401, 3) after (300, 400, 3); one",
        ),
    ],
    ids=["text", "another size"],
)
def test_rendering_that_gives_no_film_is_refused(render, said: str, monkeypatch, tmp_path) -> None:
    run_dir = trained(tmp_path / "run", "env=Drawn-v0")
    monkeypatch.setattr(Drawn, "render", render)
    with pytest.raises(EnvError, match=words(said)):
        play_game(run_dir)
    assert not (run_dir / "game.mp4").exists()


@pytest.mark.parametrize("render_fps", [0, None, -1])
def test_a_speed_of_no_use_is_replaced(render_fps: int | None, monkeypatch) -> None:
    monkeypatch.setitem(Drawn.metadata, "render_fps", render_fps)
    assert make_shown_env("Drawn-v0", AtariConfig()).frames_per_second == 5.0


@pytest.mark.parametrize(("first", "expected"), [("vp09", b"VP90"), ("none", b"FMP4")])
def test_film_plays_in_browsers_and_is_encoded_all_the_same_without_the_codec(
    first: str, expected: bytes, tmp_path, monkeypatch
) -> None:
    codecs = module._CODECS
    assert codecs[0] == "vp09"
    monkeypatch.setattr(module, "_CODECS", (first, *codecs[1:]))
    with film(tmp_path / "film.mp4", 20.0) as movie:
        movie.add(np.zeros((64, 64, 3), np.uint8))
    code = int(cv2.VideoCapture(str(tmp_path / "film.mp4")).get(cv2.CAP_PROP_FOURCC))
    assert code.to_bytes(4, "little") == expected


@pytest.mark.parametrize(
    ("rate", "num_pictures", "num_shown", "delay"), [(60.0, 60, 20, 50), (5.0, 400, 300, 200)]
)
def test_gif_keeps_the_speed_leaves_out_pictures_and_ends_after_a_minute(
    rate: float, num_pictures: int, num_shown: int, delay: int, tmp_path
) -> None:
    path = tmp_path / "film.gif"
    with film(path, rate) as movie:
        for number in range(num_pictures):
            movie.add(np.full((8, 8, 3), 4 * number % 256, np.uint8))
    with Image.open(path) as gif:
        assert (gif.n_frames, gif.info["duration"]) == (num_shown, delay)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("out", "game.avi", "out=game.avi must end in .mp4 or .gif"),
        ("checkpoint", 7, "no checkpoint of step 7; there are 40"),
        ("max_steps", 0, "max_steps is 0; at least 1"),
        ("seed", -1, "seed is -1; at least 0"),
    ],
)
def test_option_that_does_not_fit_is_refused(option: str, value: Any, said: str, pay) -> None:
    with pytest.raises(ValueError, match=words(said)):
        play_game(pay, **{option: value})
