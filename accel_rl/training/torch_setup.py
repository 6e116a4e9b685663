"""How torch computes in this process: threads, defaults, memory. The only place that sets it."""

from __future__ import annotations

import ctypes
import math
import multiprocessing.context
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch

from accel_rl.config import TrainConfig
from accel_rl.parallel import GradientSync
from accel_rl.system.topology import available_cpus, cpu_quota

T = TypeVar("T")

_LEAST_SHARED = 2**23
"""multiplications of an update's forward pass through dense layers. With fewer, threads cost more
than they save: `update_threads_2cores` in benchmarks/results"""

_forked_pids: set[int] = set()
if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=lambda: _forked_pids.add(os.getpid()))


def is_forked() -> bool:
    """Return whether this process is a fork of one that may have computed with torch's threads.

    A fork does not have these threads, and would wait for them for ever.
    """
    process = multiprocessing.current_process()
    return os.getpid() in _forked_pids or isinstance(process, multiprocessing.context.ForkProcess)


@contextmanager
def _within(get: Callable[[], T], change: Callable[[T], None], value: T) -> Iterator[None]:
    """Change a setting to ``value`` within."""
    before = get()
    change(value)
    try:
        yield
    finally:
        change(before)


def sampling_threads() -> AbstractContextManager[None]:
    """Compute in one thread within, since simulators work meanwhile.

    Results depend on the number in the last digits, so it holds from the first inference on.
    """
    return _within(torch.get_num_threads, torch.set_num_threads, 1)


@contextmanager
def learning_threads(num_threads: int) -> Iterator[None]:
    """Compute with ``num_threads`` within, since simulators wait, and take denormal numbers for 0.

    The optimizers' running means of gradients that stay 0 become so small after some hundred
    updates, and a CPU computes with such numbers 25 times as slowly.
    """
    torch.set_flush_denormal(True)  # the threads that torch makes later do the same
    threads: AbstractContextManager[None] = nullcontext()
    if num_threads > 1:  # else of another thread that may be learning nothing is touched
        threads = _within(torch.get_num_threads, torch.set_num_threads, num_threads)
    try:
        with threads:
            yield
    finally:
        torch.set_flush_denormal(False)  # for simulators it would be another arithmetic


def flushes_denormals() -> bool:
    """Return whether this thread takes numbers below 1e-38 for 0."""
    return not (torch.tensor(1e-40) * 1).item()


def quick_switches() -> AbstractContextManager[None]:
    """Let threads of this process wait for the interpreter for at most 0.1 ms within.

    Python's own limit is 5 ms, which a thread that drives a GPU would lose again and again to
    another thread, since it gives the interpreter away in every operation.
    """
    return _within(sys.getswitchinterval, sys.setswitchinterval, 1e-4)


def has_small_updates(config: TrainConfig, num_collected: int, sync: GradientSync) -> bool:
    """Return whether one learner's updates are too little work for several threads.

    Only networks of ours are judged, whose matrices are each applied once to a sample. Only sizes
    count, so that the answer is the same on every machine that resumes the run.
    """
    batches = config.learner.batches(config.sampler)
    sizes = [each.size // sync.num_sharing for name, each in batches.items() if name != "num_envs"]
    num_samples = sizes[0] if sizes else num_collected
    parameters = sync.parameters
    is_dense = all(len(shape) <= 2 for _, shape, _ in parameters.layout.values())
    size = num_samples * parameters.parameter.numel()
    return ":" not in config.model and is_dense and size < _LEAST_SHARED


def num_learning_threads(*, overlaps: bool = False, is_small: bool = False) -> int:
    """Return the number of threads for updates: one for each CPU that the quota pays for.

    There are at most ``OMP_NUM_THREADS``, but not under torchrun, which sets it to 1 by itself.

    It reads the files of the cgroup, which takes as long as a small update: call it once a run,
    after the process has got its CPUs.

    Args:
        overlaps: simulators work at the same time and have half of the CPUs.
        is_small: whether `has_small_updates`; such updates have one thread.
    """
    if is_small or is_forked():
        return 1
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    is_asked = asked.isdecimal() and "TORCHELASTIC_RUN_ID" not in os.environ
    most = (int(asked) if is_asked else 0) or math.inf
    num_cpus = int(min(len(available_cpus()), cpu_quota() or math.inf))
    return int(max(1, min(num_cpus // 2 if overlaps else num_cpus, most)))


@contextmanager
def gpu_arithmetic(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """Let a GPU compute as ``precision`` says, and cuDNN choose the fastest convolutions, within.

    cuDNN times its algorithms when a shape comes for the first time. So it is to choose by itself
    where shapes vary, as batches of GA3C's queues do, and where torch is to be deterministic.
    """
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.fp32_precision, cudnn.benchmark
    was_tf32 = before[0] == "tf32"
    matmul.allow_tf32 = was_tf32 or config.learner.precision == "tf32"
    cudnn.benchmark = (
        config.learner.in_rollouts and not torch.are_deterministic_algorithms_enabled()
    )
    try:
        yield
    finally:
        matmul.allow_tf32 = was_tf32
        matmul.fp32_precision, cudnn.benchmark = before  # "none" follows torch.backends, as before


@contextmanager
def own_torch_state() -> Iterator[None]:
    """Record gradients within, and restore the host's random numbers afterwards."""
    made = torch.empty(0)
    if made.dtype != torch.float32 or made.device.type != "cpu":
        raise ValueError(
            f"torch makes tensors of {made.dtype} on {made.device} here; networks need its "
            "own defaults: call torch.set_default_dtype(torch.float32) and "
            'torch.set_default_device("cpu") first'
        )
    flushes = flushes_denormals()
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_flush_denormal(flushes)


_TOP_PAD_BYTES = 64 * 2**20
_MALLOPT = ((-4, 0), (-1, 2**31 - 1), (-2, _TOP_PAD_BYTES))
"""M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD of <malloc.h>"""


def tune_malloc() -> bool:
    """Keep freed memory in this process, instead of giving it back and faulting it in again.

    By default glibc maps each large block anew and unmaps it when freed; a network's activations
    are such blocks, and touching their pages for the first time costs more than computing with
    them. It lasts for the life of the process, so it is for our own training process only: nothing
    calls it on import. Returns whether anything was set: on other C libraries nothing is.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(option, value) == 1 for option, value in _MALLOPT)
