"""The README's commands and programs, run as they stand there.

Programs run unchanged. Commands run unchanged too, but for the length of a run: `SHORTER` says
which options replace or join the ones given. ``make`` is only asked what it would do: it would
install.
"""

import shlex
from pathlib import Path

import pytest
from documents import ROOT, Block, read_blocks, run

RUN = ["total_steps=320", "log_interval=160", "sampler.decorrelation_steps=0"]
SHORTER = {
    "accel_rl train": RUN,
    "launch/train.py": RUN,
    "accel_rl evaluate": ["num_steps=320"],
    "accel_rl sweep": [*RUN, "algo=a2c"],
    "benchmarks/speed/speed.py": [
        "rounds=1",
        "seconds=0.2",
        "envs_per_core=[2]",
        "network=false",
        "out=sampling",
    ],
}

SLOW = ("env=breakout", "env=ms_pacman", "accel_rl sweep", "learners=2", "own_loop")
"""in commands that take long"""


def shortened(command: list[str]) -> list[str]:
    """The command with its options of `SHORTER`; one that only asks for help stays as it is."""
    options = next((new for start, new in SHORTER.items() if start in " ".join(command)), [])
    if "--help" in command:
        return command
    keys = {option.partition("=")[0] for option in options}
    return [word for word in command if word.partition("=")[0] not in keys] + options


BLOCKS = read_blocks((ROOT / "README.md").read_text())
PROGRAMS = [block for block in BLOCKS if block.language == "python"]
COMMANDS = [
    line.partition(" #")[0].strip()
    for file in ("README.md", "CONTRIBUTING.md")
    for block in read_blocks((ROOT / file).read_text())
    if block.language == "shell"
    for line in block.text.splitlines()
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader would be: the scripts at hand, and the README's own files."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("launch", "benchmarks", "examples"):
        (folder / name).symlink_to(ROOT / name)
    for program in PROGRAMS:
        (folder / program.name).write_text(program.text)
    return folder


def test_readme_has_programs_and_commands() -> None:
    assert len(PROGRAMS) >= 2
    assert {"make train", "make test"} <= set(COMMANDS)
    assert {block.language for block in BLOCKS} <= {"python", "shell", "text"}


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program_of_the_readme_runs_as_written(program: Block, folder: Path) -> None:
    run(["python", program.name], folder)


@pytest.mark.processes
def test_make_commands_of_the_readme_are_known() -> None:
    goals = {word for each in COMMANDS if each.startswith("make ") for word in each.split()[1:]}
    run(["make", "--dry-run", *goals], ROOT)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, marks=pytest.mark.nightly if any(s in c for s in SLOW) else ())
        for c in COMMANDS
        if not c.startswith("make")
    ],
)
def test_command_of_the_readme_runs(command: str, folder: Path) -> None:
    trains = next(each for each in COMMANDS if "run_dir=runs/catch" in each)
    is_made = command == trains or (folder / "runs/catch").exists()
    if "runs/catch" in command and not is_made:  # but by another process of the tests
        run(shortened(shlex.split(trains)), folder)
    run(shortened(shlex.split(command)), folder)
