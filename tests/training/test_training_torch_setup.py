"""How torch is set up: threads, arithmetic, memory, and what the host has set up before."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from run_files import parameters_of
from saved_runs import Pay, quiet, trained

from accel_rl.algos import A2C
from accel_rl.cli.parse import parse_arguments
from accel_rl.envs import StepResult
from accel_rl.models import PolicyValueModel, make_model
from accel_rl.parallel import FlatParameters, Local
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.spaces import Leaf
from accel_rl.tools.policy import load_policy
from accel_rl.training import records, torch_setup
from accel_rl.training.torch_setup import gpu_arithmetic, has_small_updates
from accel_rl.training.train import train


def is_small(options: str, model: PolicyValueModel, num_collected: int, num_sharing: int) -> bool:
    config = parse_arguments(["env=catch", *options.split()])
    sync = Local(FlatParameters(model), config.learner.rule, None)
    sync.num_sharing = num_sharing
    return has_small_updates(config, num_collected, sync)


@pytest.mark.parametrize(
    ("options", "num_sharing", "num_samples"),
    [
        ("", 2, 80),
        ("algo=ppo minibatch_size=128", 4, 32),
        ("algo=dqn batch_size=32", 1, 32),
    ],
)
@pytest.mark.parametrize("difference", [-1, 0])
def test_updates_are_small_by_parameters_times_samples_of_one_learner(
    options: str, num_sharing: int, num_samples: int, difference: int, monkeypatch
) -> None:
    model = make_model("mlp", Leaf((4,), np.dtype(np.float32)), 2)
    size = FlatParameters(model).parameter.numel() * num_samples
    monkeypatch.setattr(torch_setup, "_LEAST_SHARED", size - difference)
    assert is_small(options, model, 80, num_sharing) == (difference == -1)


def test_updates_of_convolutions_and_of_own_networks_are_not_small() -> None:
    assert not is_small("", make_model("a3c", Leaf((4, 84, 84), np.dtype(np.uint8)), 2), 1, 1)
    mlp = make_model("mlp", Leaf((4,), np.dtype(np.float32)), 2)
    assert is_small("", mlp, 1, 1) and not is_small("model=mine:Net", mlp, 1, 1)


@pytest.mark.parametrize(
    ("options", "num_threads"),
    [
        ("num_envs=2", 1),
        ("num_envs=2 overlap=true", 1),
        pytest.param("num_envs=500 horizon=10 total_steps=5000", 4, marks=pytest.mark.slow),
        pytest.param(
            "num_envs=500 horizon=10 total_steps=5000 overlap=true", 2, marks=pytest.mark.slow
        ),
    ],
)
def test_small_updates_have_one_thread(options: str, num_threads: int, tmp_path, monkeypatch):
    """Others as many as there are CPUs, or half as many while simulators work. All flush denormal
    numbers, with which a CPU is slow, and which simulators may have."""
    found, update, collect = set(), A2C.update, RolloutSampler.collect

    def sample(self: RolloutSampler, server: Any):
        assert not torch_setup.flushes_denormals()
        return collect(self, server)

    def look(self: A2C, *arguments: object):
        found.add(torch.get_num_threads())
        assert torch_setup.flushes_denormals()
        return update(self, *arguments)  # type: ignore[arg-type]

    torch.set_flush_denormal(False)  # libraries that other tests load may set it
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(A2C, "update", look)
    monkeypatch.setattr(RolloutSampler, "collect", sample)
    monkeypatch.setattr(torch_setup, "available_cpus", lambda: range(4))
    monkeypatch.setattr(torch_setup, "cpu_quota", lambda: None)
    trained(tmp_path / "run", "env=catch", *options.split())
    assert found == {num_threads}
    assert not torch_setup.flushes_denormals()


def test_updates_have_the_threads_that_the_user_asked_for(monkeypatch) -> None:
    """torchrun sets one thread by itself, which is not the user's wish."""
    monkeypatch.setattr(torch_setup, "available_cpus", lambda: range(4))
    monkeypatch.setattr(torch_setup, "cpu_quota", lambda: None)
    for asked, num_threads in (("1", 1), ("3,2", 3), ("8", 4), ("", 4), ("0", 4), ("many", 4)):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert torch_setup.num_learning_threads() == num_threads
        assert torch_setup.num_learning_threads(overlaps=True) == min(num_threads, 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert torch_setup.num_learning_threads() == 4


@pytest.fixture(scope="module")
def audited() -> Iterator[list[object] | list[None]]:
    """Files opened by this process, in any way, while the list is not empty; its first is None."""
    opened: list[object] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and opened:
            opened.append(arguments[0])

    sys.addaudithook(note)  # for good: there is no way to take it back
    yield opened


@pytest.mark.parametrize(
    "options",
    [
        "",
        pytest.param("overlap=true", marks=pytest.mark.slow),
        pytest.param("num_workers=none", marks=[pytest.mark.slow, pytest.mark.processes]),
    ],
)
def test_iterations_open_no_files_and_look_up_the_cpus_once(
    options: str, audited: list[object], tmp_path, monkeypatch
) -> None:
    num_updates, look_ups, found, update = 0, [], [], A2C.update

    def watch(self: A2C, *arguments: object):
        nonlocal num_updates
        num_updates += 1
        if num_updates == 3:
            audited.append(None)
        if num_updates == 13:
            found.extend(audited[1:])
            audited.clear()
        return update(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(A2C, "update", watch)
    monkeypatch.setattr(torch_setup, "_LEAST_SHARED", 0)  # as for larger networks
    monkeypatch.setattr(torch_setup, "available_cpus", lambda: look_ups.append(1) or range(2))
    options += " env=catch total_steps=160 log_interval=1000"
    try:
        trained(tmp_path / "run", *options.split())
    finally:
        audited.clear()
    assert num_updates == 16
    assert found == []
    assert len(look_ups) == 1


def arithmetic() -> tuple[bool, bool]:
    """Whether a GPU rounds matrix products to TF32, and whether cuDNN times its algorithms."""
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark


@pytest.mark.parametrize(
    ("options", "device", "is_deterministic", "expected"),
    [
        ("", "cuda", False, (False, True)),
        ("precision=tf32", "cuda", False, (True, True)),
        ("precision=tf32", "cuda", True, (True, False)),
        ("precision=bfloat16", "cuda", False, (False, True)),
        ("algo=ga3c precision=tf32", "cuda", False, (True, False)),
        ("precision=tf32", "cpu", False, (False, False)),
    ],
)
def test_a_gpu_computes_as_precision_says_while_a_run_lasts(
    options: str, device: str, is_deterministic: bool, expected: tuple[bool, bool], monkeypatch
) -> None:
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: is_deterministic)
    config = parse_arguments(["env=catch", *options.split()])
    before = arithmetic()
    with gpu_arithmetic(config, torch.device(device)):
        assert arithmetic() == expected
    assert arithmetic() == before == (False, False)
    assert torch.backends.cuda.matmul.fp32_precision == "none"  # that of torch.backends


def test_tf32_of_the_host_stays() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with gpu_arithmetic(parse_arguments(["env=catch"]), torch.device("cuda")):
            assert arithmetic() == (True, True)
        assert arithmetic() == (True, False)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize(
    "mode", [torch.inference_mode, pytest.param(torch.no_grad, marks=pytest.mark.slow)]
)
def test_run_is_the_same_within_modes_that_record_no_gradients(mode, tmp_path: Path) -> None:
    expected = parameters_of(trained(tmp_path / "plain", "env=catch"))
    with mode():
        found = parameters_of(trained(tmp_path / "run", "env=catch"))
        load_policy(tmp_path / "run")
        assert not torch.is_grad_enabled()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_defaults_that_are_not_torch_s_own_are_refused(tmp_path: Path) -> None:
    run_dir = trained(tmp_path / "run", "env=catch")
    message = r"torch makes tensors of torch.float64 on cpu here; .* call torch.set_def"
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match=message):
            trained(tmp_path / "other", "env=catch")
        with pytest.raises(ValueError, match=message):
            load_policy(run_dir)
    finally:
        torch.set_default_dtype(torch.float32)
    assert not (tmp_path / "other").exists()
    with torch.device("meta"), pytest.raises(ValueError, match=r"of torch.float32 on meta"):
        load_policy(run_dir)


class Drawing(Pay):
    """Notes a number that torch draws at each step."""

    drawn: ClassVar[list[float]] = []

    def step(self, action: int, out: Any) -> StepResult:
        self.drawn.append(torch.rand(()).item())
        return super().step(action, out)


@pytest.mark.slow
def test_resumed_run_goes_on_with_the_random_numbers_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "draw_or_warn", lambda *_, **__: True)  # to be quick
    run_dir = trained(tmp_path / "run", "env=test_training_torch_setup:Drawing")
    g = torch.Generator()
    g.set_state(load_checkpoint(list_checkpoints(run_dir)[-1])["torch_rng"])
    Drawing.drawn.clear()
    train(parse_arguments([f"resume={run_dir}", "total_steps=80"]), quiet())
    assert Drawing.drawn == [torch.rand((), generator=g).item() for _ in range(40)]


FAULTS_PER_BLOCK = """
import resource, sys
import numpy as np
from accel_rl.training.torch_setup import tune_malloc
if sys.argv[1] == "tuned":
    assert tune_malloc()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for number in range(20):
    if number == 10:
        before = faults()
    block = np.empty(40_000_000, np.uint8)
    block.fill(1)
    del block
print((faults() - before) / 10)
"""


def page_faults(mode: str) -> float:
    """Page faults for each block of 40 MB that a process allocates, fills and frees."""
    environment = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0"}
    command = [sys.executable, "-c", FAULTS_PER_BLOCK, mode]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return float(result.stdout)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc alone")
def test_freed_blocks_are_used_again_without_page_faults() -> None:
    assert page_faults("plain") > 1000
    assert page_faults("tuned") < 10


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(torch_setup, "ctypes", None)  # any use of it would fail
    assert torch_setup.tune_malloc() is False
