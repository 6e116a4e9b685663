"""What somebody else could do with files or as another user of the machine: each is refused.

More on code that files name, on
links and on signed messages: test_training_trust.py, test_training_files.py and tests/parallel.
"""

import os
import resource
import shutil
import time
from pathlib import Path

import pytest
from by_files import ATTACKS, COMMANDS, FOREIGN_NAMES, SECRET, why_not_refused
from by_others import NUM_DESCRIPTORS, open_descriptors_of
from saved_runs import trained

from accel_rl.__main__ import main
from accel_rl.parallel import MachineStore
from accel_rl.runs.checkpoint import list_checkpoints
from accel_rl.samplers import ParallelSampler


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "run", "env=catch", "algo=a2c", "horizon=5")


@pytest.fixture
def run_dir(whole: Path, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.mark.parametrize(
    "name",
    [
        name if i % 8 == 1 else pytest.param(name, marks=pytest.mark.slow)
        for i, name in enumerate(ATTACKS)
    ],
)
def test_attack_by_a_file_is_refused(name: str, run_dir: Path, capsys, monkeypatch) -> None:
    """In little memory and processor time, with one message, without a file anywhere else."""
    attack, command = ATTACKS[name]
    attack(run_dir)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    monkeypatch.setenv(SECRET, "hunter2")
    code = main(COMMANDS[command])
    assert why_not_refused(capsys.readouterr().err, code, {"run"}, Path.cwd()) == []
    assert time.process_time() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


def test_files_of_foreign_names_in_a_run_stay_and_change_nothing(run_dir: Path) -> None:
    made = [run_dir / "checkpoints" / name for name in FOREIGN_NAMES]
    for path in made:
        path.write_bytes(b"mine")
    assert main([*COMMANDS["resume"], "checkpoint_interval=10"]) == 0
    assert all(path.read_bytes() == b"mine" for path in made)
    assert list_checkpoints(run_dir)[-1].name == "steps_000000000080.pt"


@pytest.mark.processes
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_user_cannot_open_what_processes_share(tmp_path) -> None:
    """Neither memory nor pipes of samplers, nor reports of workers, nor messages of learners."""
    store = MachineStore()
    assert all(int(number) < NUM_DESCRIPTORS + 3 for number in store.address.split(":")[1:])
    with ParallelSampler("catch", num_envs=2, horizon=4, num_workers=1) as sampler:
        pids = [os.getpid(), *(each.pid for each in sampler._pool._workers.processes.values())]
        opened, refused = open_descriptors_of(pids)
    assert opened == [] and refused == 2 * NUM_DESCRIPTORS
