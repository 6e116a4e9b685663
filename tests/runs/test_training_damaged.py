"""Damaged and wrong checkpoints: each is one message with the next good checkpoint in it."""

import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from by_files import flip, rewrite
from saved_runs import trained
from tiers import in_tiers

from accel_rl.__main__ import main
from accel_rl.runs.checkpoint import (
    DamagedError,
    best_path,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from accel_rl.runs.saved import find_checkpoint
from accel_rl.tools.policy import load_policy

Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = ("checkpoint_interval=20", "evaluation_interval=20", "evaluation_steps=2")
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    return trained(run_dir, "env=catch", "algo=a2c", "horizon=5", *options)


@pytest.fixture
def run_dir(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def cut(size: float) -> Damage:
    """To a number of bytes, or to a share of them, or, negative, by a number."""

    def damage(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: int(size * len(data)) if 0 < size < 1 else int(size)])

    return damage


def invert(seed: int) -> Damage:
    """200 bytes anywhere: more than there are between the data of two tensors."""

    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        start = random.Random(seed).randrange(len(data) - 200)
        data[start : start + 200] = bytes(255 - each for each in data[start : start + 200])
        path.write_bytes(data)

    return damage


def put(*keys: Any, value: Any = None) -> Damage:
    """``value``, or what it makes of what there is, in the place of ``state[key][key]...``."""

    def damage(path: Path) -> None:
        state = load_checkpoint(path)
        table = state
        for key in keys[:-1]:
            table = table[first(table) if key is FIRST else key]
        key = first(table) if keys[-1] is FIRST else keys[-1]
        table[key] = value(table[key]) if callable(value) else value
        rewrite(path, state)

    return damage


def drop(*keys: str) -> Damage:
    def damage(path: Path) -> None:
        state = load_checkpoint(path)
        table = state
        for key in keys[:-1]:
            table = table[key]
        del table[keys[-1]]
        rewrite(path, state)

    return damage


class FIRST:
    """The first key of a table."""


def first(table: dict[str, Any]) -> str:
    return next(iter(table))


def quantized(tensor: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):  # deprecated
        return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


PARAMETER = ("learner", "parameters", FIRST)
FILES: dict[str, Damage] = {
    **{f"cut to {size}": cut(size) for size in (0, 1, 4, 21, 22, 47, 48, 49, 500, 4_000, 20_000)},
    **{f"cut to {size:%}": cut(size) for size in (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 0.999)},
    **{f"cut by {-size}": cut(size) for size in (-1, -8, -16, -47, -48, -49, -90, -500)},
    **{f"inverted {seed}": invert(seed) for seed in range(25)},
    "no archive": lambda path: path.write_bytes(b"not a checkpoint" * 100) and None,
    "a folder": lambda path: (path.unlink(), path.mkdir())[1],
    "a FIFO": lambda path: (path.unlink(), os.mkfifo(path))[1],
    "a device": lambda path: (path.unlink(), path.symlink_to("/dev/zero"))[1],
    "a link to nowhere": lambda path: (path.unlink(), path.symlink_to("nowhere"))[1],
    "a list": lambda path: torch.save([1, 2], path),
    "a tensor": lambda path: torch.save(torch.ones(3), path),
    "code": lambda path: torch.save({"format": 6, "run": os.system}, path),
}
FOREIGN: dict[str, Damage] = {  # values that no run has saved
    "sparse": put(*PARAMETER, value=lambda x: x.to_sparse()),
    "meta": put(*PARAMETER, value=lambda x: x.to("meta")),
    "quantized": put(*PARAMETER, value=quantized),
    "subclass": put(*PARAMETER, value=torch.nn.Parameter),
    "parameter is a list": put(*PARAMETER, value=lambda x: x.tolist()),
    "no learner": drop("learner"),
    "learner is a list": put("learner", value=lambda x: [x]),
    "parameters are empty": put("learner", "parameters", value={}),
    "no counts": drop("counts"),
    "steps are text": put("counts", "steps", value="many"),
    "no format": drop("format"),
    "format is text": put("format", value="5"),
}
RESUMED: dict[str, Damage] = {  # wrong for a run that goes on
    **{f"no {name}": drop(name) for name in ("algorithm", "torch_rng", "num_learners")},
    "algorithm is 3": put("algorithm", value=3),
    "short torch_rng": put("torch_rng", value=lambda x: x[:10].clone()),
    "evaluator of text": put("evaluator", value={"steps": "1"}),
    "optimizer is 3": put("learner", "mean_square", value=3),
}
TOOLS = ("evaluate", "play", "load_policy", "resume")


def tell(tool: str, run_dir: Path, capsys: Any) -> str:
    """The message with which ``tool`` refuses the run."""
    if tool == "load_policy":
        with pytest.raises(ValueError, match="checkpoints") as caught:
            load_policy(run_dir)
        text = str(caught.value)
    else:
        arguments = {
            "evaluate": ["evaluate", str(run_dir), "num_workers=0", "num_envs=2", "num_steps=20"],
            "play": ["play", str(run_dir), "max_steps=20", "out=" + str(run_dir / "game.gif")],
            "resume": ["train", f"resume={run_dir}", "total_steps=80"],
        }
        capsys.readouterr()
        assert main(arguments[tool]) == 1
        text = capsys.readouterr().err
        assert text.startswith("error: ")
    assert text.count("\n") <= 1
    assert "Traceback" not in text and "pickle" not in text
    return text


# `evaluate` and `play` read a checkpoint as `load_policy` does.
CASES = [(what, tool) for what in FILES | FOREIGN for tool in TOOLS]
CASES += [(what, "resume") for what in RESUMED]
SOME = CASES[::9]
OTHERS = [case for case in CASES if case[1] in ("load_policy", "resume") and case not in SOME]


@pytest.mark.parametrize(
    ("what", "tool"),
    [
        *SOME[::6],
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SOME if case not in SOME[::6]),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in OTHERS[::3]),
    ],
)
def test_damages_are_told(what: str, tool: str, run_dir, capsys) -> None:
    before, last = list_checkpoints(run_dir)
    (FILES | FOREIGN | RESUMED)[what](last)
    text = tell(tool, run_dir, capsys)
    assert str(last) in text
    if what in FILES:
        assert "damaged" in text or "cannot be read" in text
        assert f"give checkpoint=20, or delete what was saved after {before.name}" in text


@pytest.mark.slow
@pytest.mark.parametrize("tool", in_tiers(TOOLS, "load_policy resume", " ".join(TOOLS)))
def test_next_good_checkpoint_is_named_and_of_use(tool: str, run_dir, capsys) -> None:
    """Behind others that are damaged, too."""
    first, last = list_checkpoints(run_dir)
    middle = last.with_name("steps_000000000030.pt")
    shutil.copy(last, middle)
    for path in (middle, last):
        cut(0.5)(path)
    text = tell(tool, run_dir, capsys)
    if tool == "resume":
        assert f"delete what was saved after {first.name}" in text
        middle.unlink()
        last.unlink()
        assert main(["train", f"resume={run_dir}", "total_steps=60"]) == 0
    else:
        assert "give checkpoint=20" in text
        load_policy(run_dir, 20)


def test_best_is_named_if_it_is_the_only_good_one_and_damage_of_it_is_told(run_dir) -> None:
    first, last = list_checkpoints(run_dir)
    cut(0.5)(last)
    first.unlink()
    with pytest.raises(ValueError, match="give checkpoint=best"):
        load_policy(run_dir)
    invert(3)(best_path(run_dir))
    with pytest.raises(ValueError, match=r"best\.pt .*no other checkpoint that can be read"):
        load_policy(run_dir, "best")


def test_run_without_a_good_checkpoint_says_so(run_dir, capsys) -> None:
    best_path(run_dir).unlink()
    for path in list_checkpoints(run_dir):
        cut(100)(path)
    assert "no other checkpoint that can be read, so begin a new run" in tell(
        "resume", run_dir, capsys
    )


def test_folder_of_checkpoints_that_is_a_file_is_an_error_by_name(run_dir) -> None:
    shutil.rmtree(run_dir / "checkpoints")
    (run_dir / "checkpoints").write_text("")
    with pytest.raises(ValueError, match=r"checkpoints cannot be read: Not a directory"):
        find_checkpoint(run_dir)


def many_tensors() -> dict[str, Any]:
    parameters = {f"layer{n}.weight": torch.arange(300.0) + n for n in range(12)}
    return {
        "counts": {"steps": 7},
        "learner": {"parameters": parameters, "alike": [torch.zeros(500), torch.zeros(500)]},
        "sampler": torch.arange(200, dtype=torch.uint8),
        "recorder": {("loss", "entropy"): torch.ones(2)},
        "empty": torch.zeros(0),
    }


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors(each)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save_checkpoint(tmp_path, 7, many_tensors())


def assert_noticed_or_without_effect(path: Path) -> bool:
    """Returns whether it was noticed."""
    try:
        found = load_checkpoint(path)
    except DamagedError as error:
        assert str(path) in str(error)
        return True
    pairs = zip(tensors(found), tensors(many_tensors()), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert found["counts"] == {"steps": 7}
    return False


def test_flipped_bits_are_noticed_or_without_effect(path) -> None:
    data, draw = path.read_bytes(), random.Random(3)
    noticed = 0
    for _ in range(80):
        path.write_bytes(flip(data, draw.randrange(8 * len(data))))
        noticed += assert_noticed_or_without_effect(path)
    assert noticed > 40


@pytest.mark.nightly
def test_flipped_bit_in_each_byte_of_the_archives_own_is_noticed_or_without_effect(path) -> None:
    """Headers, names and directory, at which random flips seldom hit."""
    data = path.read_bytes()
    ours = [
        at for at in range(len(data)) if at > len(data) - 2500 or b"PK\3\4" in data[at - 50 : at]
    ]
    for at in ours:
        path.write_bytes(flip(data, 8 * at + at % 8))
        assert_noticed_or_without_effect(path)


def test_header_that_points_at_another_tensor_is_noticed(path) -> None:
    """The place of a tensor's data depends on its header, which the directory does not cover."""
    data = path.read_bytes()
    header = data.index(b"archive/data/3") - 30
    size = int.from_bytes(data[header + 28 : header + 30], "little")
    following = data.index(b"archive/data/4") - 30
    further = (size + following - header).to_bytes(2, "little")
    path.write_bytes(data[: header + 28] + further + data[header + 30 :])
    with pytest.raises(DamagedError, match="damaged"):
        load_checkpoint(path)


@pytest.mark.parametrize("share", [0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.9999])
def test_cut_file_is_noticed(share: float, path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DamagedError, match="damaged"):
        load_checkpoint(path)
