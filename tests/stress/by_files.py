"""Attacks by files in a run directory, and the commands that meet them."""

from __future__ import annotations

import io
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint

Attack = Callable[[Path], object]
HUGE = 1 << 42
SECRET = "ACCEL_RL_ATTACKS_TOKEN"
"""environment variable that no message may show"""
FOREIGN_NAMES = ("steps_x.pt", "steps_000000000099.pt.txt", "\n", "-rf", "a" * 255, "\udcff")


class Trap:
    """Its pickle leaves a file when it is loaded."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, ("trapped",)


def checkpoint(run_dir: Path) -> Path:
    return list_checkpoints(run_dir)[-1]


def write(name: str, text: str) -> Attack:
    return lambda run_dir: (run_dir / name).write_text(text)


def append(name: str, text: str) -> Attack:
    return lambda run_dir: (run_dir / name).write_text((run_dir / name).read_text() + text)


def replace(name: str, old: str, new: str) -> Attack:
    def attack(run_dir: Path) -> None:
        text = (run_dir / name).read_text()
        assert old in text
        (run_dir / name).write_text(text.replace(old, new))

    return attack


def holes(name: str) -> Attack:
    """A file of terabytes that takes no place on the disk."""

    def attack(run_dir: Path) -> None:
        path = checkpoint(run_dir) if name == "checkpoint" else run_dir / name
        with path.open("r+b") as file:
            file.truncate(HUGE)

    return attack


def pipe(name: str) -> Attack:
    def attack(run_dir: Path) -> None:
        path = checkpoint(run_dir) if name == "checkpoint" else run_dir / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    return attack


def lead(name: str, target: str) -> Attack:
    def attack(run_dir: Path) -> None:
        path = checkpoint(run_dir) if name == "checkpoint" else run_dir / name
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return attack


def put(name: str, make: Callable[[], object]) -> Attack:
    """A checkpoint with another value under ``name``."""

    def attack(run_dir: Path) -> None:
        state = load_checkpoint(checkpoint(run_dir))
        state[name] = make()
        rewrite(checkpoint(run_dir), state)

    return attack


def rewrite(path: Path, state: object) -> None:
    """Write a checkpoint that holds ``state``, right or wrong, and is not damaged."""
    torch.save(state, path.with_suffix(".new"))  # the state may be the file, mapped
    path.with_suffix(".new").replace(path)


def parameters_of_one_number(run_dir: Path) -> None:
    """Terabytes by a stride of 0."""
    state = load_checkpoint(checkpoint(run_dir))
    parameters = state["learner"]["parameters"]
    name = next(iter(parameters))
    parameters[name] = torch.as_strided(torch.zeros(1), (HUGE,), (0,))
    rewrite(checkpoint(run_dir), state)


def inflating(run_dir: Path) -> None:
    """A structure that is a thousand times as large when it is unpacked."""
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(checkpoint(run_dir)) as before,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for record in before.infolist():
            data = before.read(record)
            if record.filename.endswith("data.pkl"):
                data = b"\x80\x02" + b"N0" * (1 << 25) + data[2:]
            archive.writestr(record.filename, data)
    checkpoint(run_dir).write_bytes(packed.getvalue())


def script(run_dir: Path) -> None:
    with warnings.catch_warnings(action="ignore"):  # deprecated
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), checkpoint(run_dir))


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
ATTACKS: dict[str, tuple[Attack, str]] = {
    "a pickle in place of a checkpoint": (
        lambda run_dir: checkpoint(run_dir).write_bytes(pickle.dumps(Trap())),
        "evaluate",
    ),
    "a pickle in torch's archive": (
        lambda run_dir: torch.save({"format": 6, "trap": Trap()}, checkpoint(run_dir)),
        "evaluate",
    ),
    "a pickle among a config's values": (
        append("config.yaml", "x: !!python/object/apply:os.mkdir [trapped]\n"),
        "evaluate",
    ),
    "the same in an option file": (
        append("config.yaml", "x: !!python/object/apply:os.mkdir [trapped]\n"),
        "config",
    ),
    "code named by env": (replace("config.yaml", "env: catch", "env: os:mkdir"), "evaluate"),
    "code named by model": (replace("config.yaml", "model: auto", "model: os:mkdir"), "resume"),
    "a secret of the environment": (
        replace("config.yaml", "env: catch", f"env: ${{oc.env:{SECRET}}}"),
        "evaluate",
    ),
    "escape sequences in a name": (
        replace("config.yaml", "env: catch", 'env: "\\e]0;title\\a"'),
        "evaluate",
    ),
    "aliases that grow to gigabytes": (write("config.yaml", LAUGHS), "evaluate"),
    "lists within lists": (write("config.yaml", "[" * 100_000), "config"),
    "a checkpoint that inflates": (inflating, "evaluate"),
    "terabytes of one parameter": (parameters_of_one_number, "evaluate"),
    "terabytes of holes as config": (holes("config.yaml"), "evaluate"),
    "terabytes of holes as an option file": (holes("config.yaml"), "config"),
    "terabytes of holes as checkpoint": (holes("checkpoint"), "evaluate"),
    "terabytes of holes as metrics": (holes("metrics.csv"), "plot"),
    **{f"a pipe as {name}": (pipe(name), "plot") for name in ("config.yaml", "metrics.csv")},
    "a pipe as checkpoint": (pipe("checkpoint"), "evaluate"),
    "a device as config": (lead("config.yaml", "/dev/zero"), "evaluate"),
    "a device as checkpoint": (lead("checkpoint", "/dev/zero"), "evaluate"),
    "a device as metrics": (lead("metrics.csv", "/dev/zero"), "plot"),
    "a link as log": (lead("train.log", "../outside"), "resume"),
    "a link as metrics": (lead("metrics.csv", "../outside"), "resume"),
    "TorchScript in place of a checkpoint": (script, "evaluate"),
}
COMMANDS = {
    "evaluate": ["evaluate", "run", "num_steps=20", "num_envs=2", "num_workers=0"],
    "plot": ["plot", "run"],
    "config": ["train", "config=run/config.yaml", "run_dir=new", "total_steps=40"],
    "resume": ["train", "resume=run", "total_steps=80"],
}


def why_not_refused(said: str, code: int, before: set[str], folder: Path) -> list[str]:
    """What is wrong with the answer of a command to an attack; empty if the attack was refused."""
    found = []
    if code != 1:
        found.append(f"exit code {code}")
    if not said.startswith("error: ") or "Traceback" in said or len(said) > 2_000:
        found.append("no short message")
    if "run" not in said and "env" not in said:
        found.append("the message names neither file nor option")
    if os.environ.get(SECRET, "no secret") in said:
        found.append("the message shows a secret")
    if "\x1b" in said:
        found.append("the message has escape sequences")
    if made := set(os.listdir(folder)) - before:
        found.append(f"made: {sorted(made)}")
    return found


def flip(data: bytes, bit: int) -> bytes:
    """``data`` with one bit changed."""
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)
