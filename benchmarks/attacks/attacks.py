"""Attacks runs by files, as another user of the machine, and through the store of their learners.

    python benchmarks/attacks/attacks.py [out=build/attacks]

Each attack is tried on a run, or on a copy of a run, that was made for it. An attack is refused if
the command ends with exit code 1 and one short message that names the file, option or record,
within a minute of processor time and 300 MB more memory than usual, runs no code of the attacker's,
makes no file and shows no secret. Attacks by another user need root, who can become nobody.
Writes OUT.json and OUT.md; ends with 1 if an attack was not refused. Linux only.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import accel_rl.cli.run
import accel_rl.cli.tools
import accel_rl.runs.figures
import accel_rl.training.train  # noqa: F401
from accel_rl.__main__ import main as command
from accel_rl.runs.archive import DamagedError
from accel_rl.runs.checkpoint import load_checkpoint
from accel_rl.signing import key_path, user_key
from benchmarks.attacks.by_files import (
    ATTACKS,
    COMMANDS,
    FOREIGN_NAMES,
    SECRET,
    Trap,
    checkpoint,
    flip,
    why_not_refused,
)
from benchmarks.attacks.by_others import (
    FORGED_NAMES,
    NUM_DESCRIPTORS,
    SPOILED_KEYS,
    as_nobody,
    open_descriptors_of,
    read_as_nobody,
    set_records,
)
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse

ROOT = Path(__file__).resolve().parents[2]
MOST_SECONDS = 60.0
"""of processor time; and in which a run ends whose records are forged"""
MOST_MORE_MEMORY = 300.0
"""in MB"""
NUM_FLIPS = 100
SMALL = ("serial=true", "horizon=5", "decorrelation_steps=0")
FORGED = {"a pickle": pickle.dumps(Trap()), "a record": b"unsigned 0 [[],0,{},{},1,null]"}
HEADINGS = {
    "files": "Files in a run directory, met by a command",
    "damage": "Damaged files",
    "user": "Another user of the machine",
    "store": "Records in the store of two learners, written by another user",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Where the results go."""

    out: str = "build/attacks"
    """file of the results, without its suffix"""


@dataclass
class Attempt:
    """One attack. ``failures`` is empty if it was refused."""

    kind: str
    attack: str
    met_by: str
    failures: list[str] = field(default_factory=list)
    answer: str = ""
    seconds: float = 0.0
    memory_mb: float = 0.0


def main() -> int:
    options = parse(Options, sys.argv[1:], __doc__)
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    attempts = []
    with tempfile.TemporaryDirectory(prefix="attacks-") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)  # so that another user is stopped by what accel_rl does
        os.environ |= {"XDG_STATE_HOME": str(folder / "state"), SECRET: "hunter2"}
        run_command(folder, ["env=catch", *SMALL, "num_envs=2", "total_steps=40", "run_dir=whole"])
        for attempt in try_all(folder):
            attempts.append(attempt)
            state = f"NOT REFUSED: {attempt.failures}" if attempt.failures else "refused"
            print(f"{attempt.kind}: {attempt.attack} ({attempt.met_by}): {state}", flush=True)
    report = {
        "machine": describe_machine(usable_cores()),
        "attempts": [asdict(attempt) for attempt in attempts],
    }
    Path(f"{out}.json").write_text(json.dumps(report, indent=1) + "\n")
    Path(f"{out}.md").write_text("\n".join(page(attempts)) + "\n")
    failed = sum(bool(attempt.failures) for attempt in attempts)
    print(f"{len(attempts)} attacks, {failed} not refused; written: {out}.json, {out}.md")
    return 1 if failed else 0


def try_all(folder: Path) -> Iterator[Attempt]:
    yield from by_files(folder)
    yield by_foreign_names(folder)
    yield from by_damage(folder)
    yield from by_keys()
    if os.getuid() != 0:
        print("attacks by another user need root")
        return
    yield from by_another_user(folder)
    for name, forged in FORGED.items():
        yield by_records(folder, name, forged)


def run_command(folder: Path, arguments: list[str]) -> tuple[int, str, float, float]:
    """Run accel_rl in ``folder``, in a fork of this process, which has loaded torch.

    Returns its exit code, its errors, its processor time in seconds and its memory in MB.
    """
    errors = folder.parent / f"{folder.name}-errors"
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.chdir(folder)
            with open(errors, "wb") as file, open(os.devnull, "r+b") as null:
                for descriptor, other in ((0, null), (1, null), (2, file)):
                    os.dup2(other.fileno(), descriptor)
            code = command(arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status, usage = os.wait4(pid, 0)
    said = errors.read_text(errors="replace")
    errors.unlink()
    seconds = usage.ru_utime + usage.ru_stime
    return os.waitstatus_to_exitcode(status), said, seconds, usage.ru_maxrss / 1024


def copy(folder: Path) -> Path:
    """A folder of its own with a copy of the whole run in it."""
    place = Path(tempfile.mkdtemp(dir=folder))
    shutil.copytree(folder / "whole", place / "run")
    return place


def by_files(folder: Path) -> Iterator[Attempt]:
    """The table of `by_files.py`."""
    usual = {}
    for name, arguments in COMMANDS.items():
        code, said, _, usual[name] = run_command(copy(folder), arguments)
        if code:
            raise RuntimeError(f"{name} fails without an attack: {said}")
    for name, (attack, met_by) in ATTACKS.items():
        place = copy(folder)
        attack(place / "run")
        code, said, seconds, memory = run_command(place, COMMANDS[met_by])
        failures = why_not_refused(said, code, {"run"}, place)
        if seconds > MOST_SECONDS:
            failures.append(f"took {seconds:.0f} s")
        if memory > usual[met_by] + MOST_MORE_MEMORY:
            failures.append(f"took {memory:.0f} MB, without the attack {usual[met_by]:.0f} MB")
        said = said.replace(f"{place}/", "")
        yield Attempt("files", name, met_by, failures, said, seconds, memory)


def by_foreign_names(folder: Path) -> Attempt:
    """Files beside checkpoints that look like them, or like options of a command."""
    place = copy(folder)
    made = [place / "run" / "checkpoints" / name for name in FOREIGN_NAMES]
    for path in made:
        path.write_bytes(b"mine")
    more = ["num_checkpoints=1", "checkpoint_interval=10"]
    code, said, seconds, memory = run_command(place, [*COMMANDS["resume"], *more])
    failures = [] if code == 0 else [f"exit code {code}: {said}"]
    failures += [f"{path.name} has changed" for path in made if path.read_bytes() != b"mine"]
    answer = "they stay, and the run goes on"
    return Attempt("files", "foreign names", "resume", failures, answer, seconds, memory)


def by_damage(folder: Path) -> Iterator[Attempt]:
    """Bits flipped and ends cut off, which nothing but the digests of a checkpoint can show."""
    place, rng = copy(folder), random.Random(0)
    path = checkpoint(place / "run")
    data, noticed, failures = path.read_bytes(), 0, list[str]()
    wanted = repr(load_checkpoint(path))
    for _ in range(NUM_FLIPS):
        bit = rng.randrange(8 * len(data))
        path.write_bytes(flip(data, bit))
        try:
            if repr(load_checkpoint(path)) != wanted:
                failures.append(f"bit {bit} changes what is read")
        except DamagedError:
            noticed += 1
    answer = f"{noticed} noticed, {NUM_FLIPS - noticed} without effect"
    yield Attempt("damage", f"{NUM_FLIPS} flipped bits", "load_checkpoint", failures, answer)
    failures = []
    for size in sorted(rng.sample(range(len(data)), NUM_FLIPS)):
        path.write_bytes(data[:size])
        with suppress(DamagedError):
            load_checkpoint(path)
            failures.append(f"{size} bytes are read")
    answer = "each is noticed"
    yield Attempt("damage", f"{NUM_FLIPS} cuts", "load_checkpoint", failures, answer)


def by_keys() -> Iterator[Attempt]:
    """A key that others may know or have put there."""
    for name, spoil in SPOILED_KEYS.items():
        key_path().unlink(missing_ok=True)
        user_key()
        spoil(key_path())
        failures = [] if user_key() is None else ["it is used"]
        yield Attempt("user", f"your key is {name}", "user_key", failures, "it is not used")
    key_path().unlink()


def by_another_user(folder: Path) -> Iterator[Attempt]:
    """What processes share, and files that should be their owner's alone."""
    user_key()
    place = copy(folder)
    with running(place, ["env=catch", "num_envs=4", "num_workers=2", "learners=1"]) as process:
        pids = [process.pid, *(each.pid for each in process.children(recursive=True))]
        opened, refused = open_descriptors_of(pids)
        failures = [f"opened: {opened}"] if opened else []
        answer = f"{refused} descriptors refused"
        if refused != NUM_DESCRIPTORS * len(pids):
            failures.append(answer)
        yield Attempt("user", "memory and pipes of workers", "a run", failures, answer)
        private = [f"/proc/{pid}/{name}" for pid in pids for name in ("environ", "mem", "maps")]
        failures = [f"opened: {each}" for each in read_as_nobody(private)]
        answer = f"{len(private)} files of /proc refused"
        yield Attempt("user", "memory and variables in /proc", "a run", failures, answer)
    failures = ["it is read or written"] if read_as_nobody([key_path()]) else []
    yield Attempt("user", "your key", "its mode", failures, "neither read nor written")
    files = [path for path in (place / "new").rglob("*") if path.is_file()]
    written = [path for path in files if as_nobody(partial(path.open, "r+b"))]
    failures = [f"written: {written}"] if written else []
    answer = f"{len(files)} files refused"
    yield Attempt("user", "writing into a run directory", "its modes", failures, answer)


class running:
    """A run in ``place``/new that has written its first rows, killed at the end."""

    def __init__(self, place: Path, options: list[str]) -> None:
        self.errors = place / "errors"
        with open(self.errors, "wb") as file:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "accel_rl", *options, "run_dir=new"),
                    *("total_steps=1000000000", "log_interval=200"),
                ],
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
        self._rows = place / "new" / "metrics.csv"

    def __enter__(self) -> psutil.Process:
        deadline = time.monotonic() + 120
        while not (self._rows.exists() and self._rows.read_bytes().count(b"\n") > 1):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the run did not begin: {self.errors.read_text()}")
            time.sleep(0.05)
        return psutil.Process(self._process.pid)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def wait(self, act: Callable[[], object]) -> int | None:
        """Call ``act`` again and again until the run ends; None if it does not within a minute."""
        deadline = time.monotonic() + MOST_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            act()
            time.sleep(0.05)
        return self._process.poll()


def by_records(folder: Path, name: str, forged: bytes) -> Attempt:
    """Nobody writes ``forged`` into every store of a run, over what learner 1 says."""
    place, began = copy(folder), time.monotonic()
    run = running(place, ["env=catch", *SMALL, "num_envs=4", "learners=2"])
    with run as process:
        ports = {
            each.laddr.port
            for each in process.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
        }

        def write() -> None:
            for port in ports:
                with suppress(OSError):  # the run has ended
                    set_records(port, dict.fromkeys(FORGED_NAMES, forged))

        code = run.wait(partial(as_nobody, write))
    said = run.errors.read_text(errors="replace")
    answer = re.search(r"error: the record post/1/\d+ in the run's store .*", said)
    failures = [] if code == 1 else [f"exit code {code}"]
    failures += [] if answer else [f"the message does not name the record: {said[-500:]}"]
    if (place / "trapped").exists():
        failures.append("the pickle was executed")
    seconds = time.monotonic() - began
    return Attempt("store", name, "learners=2", failures, answer[0] if answer else "", seconds)


def page(attempts: list[Attempt]) -> Iterator[str]:
    """A page with a table for each kind of attack."""
    refused = sum(not attempt.failures for attempt in attempts)
    yield "# Attacks"
    yield ""
    yield f"{refused} of {len(attempts)} attacks of `benchmarks/attacks/attacks.py` were refused."
    yield "[Guarantees](../../docs/guarantees.md#attacks) says what a refusal is."
    for kind, heading in HEADINGS.items():
        of_kind = [attempt for attempt in attempts if attempt.kind == kind]
        if not of_kind:
            continue
        yield from ("", f"## {heading}", "", "| attack | met by | | answer |", "|---|---|---|---|")
        for each in of_kind:
            state = "**not refused**" if each.failures else "refused"
            answer = "; ".join(each.failures) or each.answer.removeprefix("error: ")
            yield f"| {each.attack} | {each.met_by} | {state} | {_cell(answer)} |"


def _cell(text: str) -> str:
    """Text for a cell of a table, in one line and not too long."""
    line = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    line = re.sub(r"/\S*/attacks-\w+/\w+/", "", line)
    return f"{line[:157]}..." if len(line) > 160 else line


if __name__ == "__main__":
    sys.exit(main())
