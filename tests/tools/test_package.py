"""Saved runs as directories for the Hugging Face Hub, and policies that are read from them."""

import dataclasses
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from refusals import words
from saved_runs import POLICIES, drawn_steps, prefer_action, trained, with_env
from tiers import in_tiers
from torch import nn

from accel_rl.__main__ import main
from accel_rl.runs.saved import read_config
from accel_rl.spaces import map_leaves
from accel_rl.tools import package
from accel_rl.tools.evaluate import EvaluateOptions, evaluate_run
from accel_rl.tools.package import PackageOptions, package_run
from accel_rl.tools.policy import SavedPolicy, load_policy

pytest.importorskip("safetensors", reason="of the extra hub")

NAMES = ["README.md", "config.yaml", "metrics.csv", "model.safetensors", "replay.mp4"]
CASES = POLICIES | {"own-network": ["algo=a2c", "model=test_package:tied"]}
SLOW = "masked masked-q dict normalized gru-told own-network all-dqn"


class Tied(nn.Module):
    """It has a parameter by two names and buffers, of which one counts."""

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        self.first = nn.Linear(num_inputs, num_inputs)
        self.second = nn.Linear(num_inputs, num_inputs)
        self.second.weight = self.first.weight
        self.last = nn.Linear(num_inputs, num_actions + 1)
        self.register_buffer("scale", torch.full((num_inputs,), 0.5))
        self.register_buffer("count", torch.tensor(3))

    def forward(self, observation: torch.Tensor) -> Any:
        y = self.last(self.second(self.first(observation.flatten(1) * self.scale)).tanh())
        return y[:, :-1], y[:, -1]


def tied(observation_shape: tuple[int, ...], num_actions: int) -> nn.Module:
    return Tied(int(np.prod(observation_shape)), num_actions)


def packaged(run_dir: Path, **options: Any) -> Path:
    return package_run(run_dir, PackageOptions(**options)).path


def actions_of(policy: SavedPolicy) -> list[Any]:
    return [policy(*each) for each in drawn_steps(policy.env_spec, 3, 64)]


def act_the_same(run_dir: Path, folder: Path) -> None:
    for greedy in (False, True):
        found, expected = (
            actions_of(load_policy(each, greedy=greedy)) for each in (folder, run_dir)
        )
        for one, other in zip(found, expected, strict=True):
            map_leaves(np.testing.assert_array_equal, one, other)


@pytest.fixture
def no_film(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "_film", lambda *_: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "run", "env=catch", "algo=a2c", "horizon=5")


@pytest.fixture
def run_dir(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture(scope="module")
def packed(whole: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(package, "_film", lambda *_: None)
        return packaged(whole, out=str(whole.with_name("package")))


@pytest.fixture
def folder(packed: Path, run_dir: Path) -> Path:
    """A package of ``run_dir``, elsewhere."""
    return Path(shutil.copytree(packed, run_dir.with_name("package")))


# ---- the policy ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_film", "one_torch_thread")
@pytest.mark.parametrize("case", in_tiers(CASES, "lstm", SLOW))
def test_policy_of_a_package_acts_as_that_of_its_run(case: str, tmp_path) -> None:
    run_dir = trained(tmp_path / "run", *with_env(CASES[case]))
    act_the_same(run_dir, packaged(run_dir))


def test_package_of_the_best_checkpoint_has_its_policy(tmp_path, no_film) -> None:
    evaluating = ["evaluation_interval=20", "evaluation_steps=2"]
    run_dir = trained(tmp_path / "run", "env=catch", *evaluating)
    prefer_action(run_dir, 2)  # the last checkpoint, not the best one
    best = packaged(run_dir, checkpoint="best")
    for folder, is_last in ((best, False), (packaged(run_dir, out=str(tmp_path / "last")), True)):
        assert (set(actions_of(load_policy(folder))[0]) == {2}) == is_last


def test_package_behind_links_is_read_without_torchs_reader(folder, run_dir, monkeypatch) -> None:
    """As in the cache of the Hub's client; torch's reader, which reads pickles, has no part."""
    linked = folder.with_name("linked")
    linked.mkdir()
    for file in folder.iterdir():
        (linked / file.name).symlink_to(file)
    expected = actions_of(load_policy(run_dir))
    monkeypatch.setattr(torch, "load", None)
    np.testing.assert_array_equal(actions_of(load_policy(linked)), expected)


@pytest.mark.slow
def test_package_is_evaluated_and_plotted_as_a_run(folder, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = evaluate_run(folder, EvaluateOptions(num_steps=200, num_envs=2, num_workers=0))
    assert (report.checkpoint_steps, report.num_games > 0) == (40, True)
    assert main(["plot", str(folder)]) == 0


# ---- what is in the directory --------------------------------------------------------------------


def test_command_makes_a_directory_of_text_numbers_and_a_film(run_dir, tmp_path, capsys) -> None:
    out = tmp_path / "package"
    assert main(["package", str(run_dir), f"out={out}"]) == 0
    assert capsys.readouterr().out == f"written: {out}\n"
    assert sorted(each.name for each in out.iterdir()) == NAMES
    data = (out / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["__metadata__"] == {"format": "pt", "steps": "40"}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["package", "run"]


def test_config_is_that_of_the_run_and_no_file_names_its_place(folder, run_dir) -> None:
    assert read_config(folder) == dataclasses.replace(read_config(run_dir), run_dir=None)
    place = read_config(run_dir).run_dir
    assert place is not None
    assert [each for each in folder.iterdir() if place.encode() in each.read_bytes()] == []


def test_card_has_the_metadata_that_the_hub_reads(folder) -> None:
    scores = package.read_scores(folder, 40)
    assert scores is not None
    _, front, body = (folder / "README.md").read_text().split("---\n", 2)
    metadata: Any = OmegaConf.to_container(OmegaConf.create(front))
    assert metadata["library_name"] == "accel_rl"
    assert {"reinforcement-learning", "a2c", "catch"} <= set(metadata["tags"])
    (model,) = metadata["model-index"]
    (result,) = model["results"]
    assert (model["name"], result["dataset"]["name"]) == ("a2c-catch", "catch")
    assert result["task"]["type"] == "reinforcement-learning"
    (metric,) = result["metrics"]
    value = f"{scores.mean:.2f} +/- {scores.std:.2f}"
    assert (metric["type"], metric["value"]) == ("mean_reward", value)
    assert metric["args"] == {"num_episodes": scores.num_episodes}
    assert f"| episodes | {scores.num_episodes}: the last games of training |" in body


def test_card_is_read_by_the_client_of_the_hub(folder) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="of the extra hub")
    data = hub.ModelCard.load(folder / "README.md").data
    (result,) = data.eval_results
    assert (data.library_name, data.model_name) == ("accel_rl", "a2c-catch")
    assert (result.task_type, result.dataset_name) == ("reinforcement-learning", "catch")
    assert (result.metric_type, "+/-" in result.metric_value) == ("mean_reward", True)


# ---- scores --------------------------------------------------------------------------------------


def scores_of(run_dir: Path) -> tuple[str, float, int] | None:
    scores = package.read_scores(run_dir, 40)
    return scores and (scores.source, scores.mean, scores.num_episodes)


def test_scores_come_from_the_best_source_about_this_policy(run_dir) -> None:
    header = "steps,episodes_in_window,episode_return_raw_mean,episode_return_raw_std\n"
    (run_dir / "metrics.csv").write_text(f"{header}20,1,nan,nan\n")
    assert scores_of(run_dir) is None
    (run_dir / "metrics.csv").write_text(f"{header}20,5,0.25,1\n40,9,0.5,1\n60,9,9,1\n")
    assert scores_of(run_dir) == ("metrics.csv", 0.5, 9)
    header = "steps,episodes,episode_return_raw_mean,episode_return_raw_std\n"
    (run_dir / "evaluation.csv").write_text(f"{header}20,4,2,1\n")
    assert scores_of(run_dir) == ("metrics.csv", 0.5, 9)  # of an earlier policy
    (run_dir / "evaluation.csv").write_text(f"{header}20,4,2,1\n40,4,3,1\n")
    assert scores_of(run_dir) == ("evaluation.csv", 3, 4)
    report = {"checkpoint_steps": 20, "mean": 7, "std": 1, "num_games": 11, "greedy": True}
    (run_dir / "evaluation.json").write_text(json.dumps(report))
    assert scores_of(run_dir) == ("evaluation.csv", 3, 4)
    (run_dir / "evaluation.json").write_text(json.dumps(report | {"checkpoint_steps": 40}))
    assert scores_of(run_dir) == ("evaluation.json", 7, 11)


def test_card_without_a_finished_game_has_no_metric(run_dir, no_film) -> None:
    (run_dir / "metrics.csv").unlink()
    text = (packaged(run_dir) / "README.md").read_text()
    assert "mean_reward" not in text and "mean reward" not in text


# ---- the film ------------------------------------------------------------------------------------


def test_film_is_that_of_the_run_unless_a_checkpoint_is_given(run_dir) -> None:
    (run_dir / "game.mp4").write_text("a film")
    assert (packaged(run_dir) / "replay.mp4").read_text() == "a film"
    os.utime(run_dir / "game.mp4", (0, 0))  # older than the checkpoint
    assert (packaged(run_dir, overwrite=True) / "replay.mp4").read_bytes() != b"a film"
    (run_dir / "package" / "LICENSE").write_text("of the user")
    film = packaged(run_dir, checkpoint=40, overwrite=True) / "replay.mp4"
    assert (run_dir / "package" / "LICENSE").exists()
    assert cv2.VideoCapture(str(film)).get(cv2.CAP_PROP_FRAME_COUNT) == 10


def test_environment_that_cannot_be_filmed_costs_the_film_alone(tmp_path, capsys) -> None:
    run_dir = trained(tmp_path / "run", *POLICIES["dict"])
    assert main(["package", str(run_dir)]) == 0
    assert re.match(r"replay.mp4 is left out: .*cannot be shown", capsys.readouterr().err)
    assert not (run_dir / "package" / "replay.mp4").exists()
    text = (run_dir / "package" / "README.md").read_text()
    assert "replay.mp4" not in text
    # Names with a meaning in Markdown and tags are written plainly.
    assert "\n- saved_runs-nested\n" in text
    assert "# ppo on saved_runs-nested\n" in text
    assert "name code that is not in this directory: `env=saved_runs:nested`" in text


# ---- whole or not at all -------------------------------------------------------------------------


def test_directory_that_exists_or_lies_in_none_is_refused(run_dir, tmp_path, capsys) -> None:
    (tmp_path / "taken").mkdir()
    for name, said in (("taken", "taken exists; out=DIRECTORY"), ("a/b", "no directory make it")):
        assert main(["package", str(run_dir), f"out={tmp_path / name}", "overwrite=true"]) == 1
        assert re.match(words(f"error: {said}"), capsys.readouterr().err)
    assert list((tmp_path / "taken").iterdir()) == []


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_package_that_fails_midway_leaves_nothing(error, run_dir, tmp_path, monkeypatch) -> None:
    def fail(*_: object) -> str:
        raise error

    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(package, "model_card", fail)
    with pytest.raises(error):
        packaged(run_dir)
    assert sorted(tmp_path.rglob("*")) == before


# ---- refused -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_package_of_somebody_elses_code_vouches_for_nothing(tmp_path, no_film) -> None:
    run_dir = trained(tmp_path / "run", "env=space_envs:masked", "algo=ppo")
    load_policy(packaged(run_dir, out=str(tmp_path / "mine")))
    config = run_dir / "config.yaml"
    config.write_text(re.sub("# signature: .*\n", "", config.read_text()))
    with pytest.raises(ValueError, match="trust=true"):
        packaged(run_dir)
    foreign = packaged(run_dir, trust=True)
    with pytest.raises(ValueError, match=r"env=space_envs:masked.*trust=true"):
        load_policy(foreign)
    load_policy(foreign, trust=True)


def test_missing_package_is_told_with_the_extra(run_dir, folder, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for read in (lambda: packaged(run_dir), lambda: load_policy(folder)):
        with pytest.raises(ValueError, match=r'needs safetensors.*install "accel_rl\[hub\]"'):
            read()


def test_package_has_no_checkpoint_to_choose_resume_or_package(folder, capsys) -> None:
    with pytest.raises(ValueError, match=r"checkpoint=40 has no effect.*package.*leave it out"):
        load_policy(folder, 40)
    for command in (["package", str(folder)], ["train", f"resume={folder}", "total_steps=80"]):
        assert main(command) == 1
        assert "is a package, which holds a policy and no checkpoint" in capsys.readouterr().err


def other_network(path: Path) -> None:
    size = 1 << 30
    huge = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    text = json.dumps({"huge": huge, "__metadata__": {"steps": "40"}}).encode()
    with path.open("wb") as file:  # of holes
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size)


def write_again(path: Path, value: float | None = None, **metadata: str) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    if value is not None:
        next(iter(tensors.values())).fill_(value)
    save_file(tensors, path, metadata)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "not a safetensors copy or down"),
        (lambda path: path.write_bytes(b"\x80\x04N."), "not a safetensors file copy or download"),
        (lambda path: os.truncate(path, 1 << 42), "not a safetensors file copy or download"),
        (other_network, "not of the network config.yaml differ in huge, use the direct"),
        (write_again, "not a safetensors copy or download it again"),
        (pipe, "not a regular file"),
    ],
    ids=["cut", "a pickle", "holes", "other network", "no steps", "a pipe"],
)
def test_weights_that_were_changed_are_told(damage, said: str, folder) -> None:
    damage(folder / "model.safetensors")
    with pytest.raises(ValueError, match=words(f"model.safetensors {said}")):
        load_policy(folder)
