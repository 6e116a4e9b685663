"""What accel_rl assumes of CUDA and torch, tried one by one.

    python benchmarks/gpu_day/probe.py [key=value ...]

    registering   shared memory that CUDA can copy from and to without staging
    acting        actions of A3C-Net with their copies, eagerly and as one graph; the same beside
                  large products, in a stream of equal and of high priority
    gathers       rows of a replay of a million frames, by index_select and by indexing
    rules         update rules on the device against the CPU
    precision     forward and backward pass in float32, with TF32 products, and in bfloat16
    threads       how late a thread gets the interpreter while another enqueues
    nccl          an all-reduce by the names of backends and the store that learners use

Times are medians in microseconds. On the CPU, what only CUDA has is left out. A part that fails
does not stop the others. Prints a line for each figure and writes OUT.json.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import statistics
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.agents import PolicyAgent
from accel_rl.models import make_model
from accel_rl.parallel import Adam, RMSProp
from accel_rl.parallel.rules import Rule
from accel_rl.registration import register, unregister
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.report import Row, write

IMAGE = (4, 104, 80)
NUM_ACTIONS = 4


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to try."""

    device: str = "cuda"
    """cuda, or cpu for a first look at the script"""
    scale: float = 1.0
    """of sizes and repetitions"""
    out: str = "benchmarks/results/probe_gpu"
    """where to write, without the ending"""


def main() -> None:
    """Try, print and write."""
    options = parse(Options, sys.argv[1:], __doc__)
    machine = describe_machine(usable_cores())
    probe = Probe(torch.device(options.device), options.scale)
    if not probe.is_cuda:
        torch.set_num_threads(1)  # other processes may be on the other cores
    rows: list[Row] = []
    parts = (registering, acting, gathers, rules, precision, threads, nccl)
    for part in parts:
        row: Row = {"name": part.__name__, "error": None, "figures": {}}
        rows.append(row)
        try:
            for name, figure in part(probe):
                row["figures"][name] = figure
                shown = f"{figure:,.4g}" if isinstance(figure, float) else figure
                print(f"{part.__name__}, {name}: {shown}", flush=True)
        except Exception:
            row["error"] = traceback.format_exc()
            print(f"{part.__name__} FAILED\n{row['error']}", flush=True)
    report = {"machine": machine, "options": dataclasses.asdict(options), "rows": rows}
    write(report, options.out, tabulate)
    if any(row["error"] for row in rows):
        raise SystemExit(1)


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Print what failed."""
    for row in report["rows"]:
        console.print(f"{row['name']}: {'failed' if row['error'] else 'done'}", highlight=False)


Figures = Iterator[tuple[str, float | str | bool]]


@dataclass(frozen=True)
class Probe:
    """Where to try, and how much of it."""

    device: torch.device
    scale: float

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Wait until the device has done everything."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def size(self, full: int) -> int:
        """A size at this scale, at least 16."""
        return max(16, int(self.scale * full))

    def time(self, act: Callable[[], object], repetitions: int = 100) -> float:
        """Median of the microseconds until the device has done ``act``."""
        for _ in range(3):
            act()
        times = []
        for _ in range(max(3, int(self.scale * repetitions))):
            self.wait()
            began = perf_counter()
            act()
            self.wait()
            times.append(perf_counter() - began)
        return 1e6 * statistics.median(times)


def shared_memory(size: int) -> Tensor:
    """Bytes of a memory file, as workers share them."""
    descriptor = os.memfd_create("probe")
    os.ftruncate(descriptor, size)
    memory = mmap.mmap(descriptor, size)
    os.close(descriptor)
    return torch.frombuffer(memory, dtype=torch.uint8)


def registering(probe: Probe) -> Figures:
    """Register shared memory of several sizes, and copy from it."""
    if not probe.is_cuda:
        return
    for size in (4_096, 5_000, 10_000_001, 300_000_000):
        yield from _registering(probe, size)


def _registering(probe: Probe, size: int) -> Figures:
    """Register ``size`` bytes."""
    memory = shared_memory(size)
    memory[:4_096] = torch.arange(4_096) % 251
    began = perf_counter()
    is_registered = register(memory, probe.device)
    yield f"{size:,} bytes, ms", 1e3 * (perf_counter() - began)
    there = memory.to(probe.device, non_blocking=True)
    probe.wait()
    yield f"{size:,} bytes, registered", is_registered and memory.is_pinned()
    if not torch.equal(there[:4_096].cpu(), memory[:4_096]):
        raise AssertionError("what was copied from registered memory is something else")
    yield (
        f"{size:,} bytes, copy in",
        probe.time(lambda: there.copy_(memory, non_blocking=True), 5),
    )
    yield (
        f"{size:,} bytes, copy out",
        probe.time(lambda: memory.copy_(there, non_blocking=True), 5),
    )
    if is_registered:
        unregister(memory)


def acting(probe: Probe) -> Figures:
    """Actions for a group of environments, with all copies."""
    for group in (8, 64):
        yield from _acting(probe, group)


def _acting(probe: Probe, group: int) -> Figures:
    """Act for ``group`` environments."""
    size = group * int(np.prod(IMAGE))
    host = shared_memory(size).view(group, *IMAGE)
    host.random_(256)
    is_registered = probe.is_cuda and register(host, probe.device)
    agent = PolicyAgent(make_model("a3c", IMAGE, np.dtype(np.uint8), NUM_ACTIONS).to(probe.device))
    there = torch.zeros_like(host, device=probe.device)
    random = torch.rand(group, dtype=torch.float64)
    random = random.pin_memory() if probe.is_cuda else random
    uniform = torch.zeros(group, dtype=torch.float64, device=probe.device)
    action = torch.zeros(group, dtype=torch.int64)
    action = action.pin_memory() if probe.is_cuda else action

    def act() -> None:
        there.copy_(host, non_blocking=True)
        uniform.copy_(random, non_blocking=True)
        action.copy_(agent.act(there, uniform, slice(0, group)), non_blocking=True)

    with torch.no_grad():
        yield f"{group} environments, eager", probe.time(act)
        if probe.is_cuda:
            probe.wait()
            eager = action.clone()
            graph = captured(act)
            yield f"{group} environments, graph", probe.time(graph.replay)
            yield f"{group} environments, same actions", torch.equal(action, eager)
            if group == 64:
                yield from beside_products(probe, graph)
    if is_registered:
        unregister(host)


def captured(act: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """``act`` as a graph, after a warm-up in another stream."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            act()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        act()
    return graph


def beside_products(probe: Probe, graph: torch.cuda.CUDAGraph) -> Figures:
    """How long a graph takes beside large products in a stream of priority 0."""
    matrix = torch.randn(4_096, 4_096, device=probe.device)
    busy = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for name, priority in (("equal", 0), ("high", -5)):
        own = torch.cuda.Stream(priority=priority)  # type: ignore[no-untyped-call]
        times = []
        for _ in range(20):
            probe.wait()
            with torch.cuda.stream(busy):
                for _ in range(12):
                    torch.mm(matrix, matrix)
            with torch.cuda.stream(own):
                began = perf_counter()
                graph.replay()
                own.synchronize()
            times.append(perf_counter() - began)
        yield f"graph beside products, {name} priority", 1e6 * statistics.median(times)


def gathers(probe: Probe) -> Figures:
    """2,048 stacks and their next stacks from a replay of single frames."""
    num_frames, row = probe.size(1_000_000), IMAGE[1] * IMAGE[2]
    frames = torch.empty(num_frames, row, dtype=torch.uint8, device=probe.device)
    frames.random_(256)
    index = torch.randint(num_frames, (probe.size(2_048 * 8),), device=probe.device)
    if not torch.equal(frames[index], frames.index_select(0, index)):
        raise AssertionError("indexing finds other rows than index_select")
    yield "index_select", probe.time(lambda: frames.index_select(0, index), 20)
    yield "indexing", probe.time(lambda: frames[index], 20)
    last = torch.tensor([num_frames - 1], device=probe.device)
    frames[num_frames - 1] = 7
    yield "last frame", bool((frames[last] == 7).all())


def rules(probe: Probe) -> Figures:
    """Three steps of each update rule, on the device and on the CPU."""
    for rule in (Adam(eps=1e-5), RMSProp(decay=0.9, eps=1e-6, initial=0.0)):
        yield from _rule(probe, rule)


def _rule(probe: Probe, rule: Rule) -> Figures:
    """Take three steps of ``rule``."""
    found = []
    for device in (torch.device("cpu"), probe.device):
        generator = torch.Generator().manual_seed(0)
        first, *gradients = torch.randn(4, probe.size(1_000_000), generator=generator)
        flat = first.to(device).clone()
        state = rule.make_state(flat)
        for step, gradient in enumerate(gradients, 1):
            rule.step_(flat, gradient.to(device), state, rule.rate(1e-3, step))
        found.append(flat.cpu())
    there = gradients[0].to(probe.device)
    name = type(rule).__name__
    yield f"{name}, largest difference", float((found[0] - found[1]).abs().max())
    yield name, probe.time(lambda: rule.step_(flat, there, state, 1e-3))


def precision(probe: Probe) -> Figures:
    """The passes of an update at several precisions; also where cuDNN times its convolutions."""
    before = torch.backends.cudnn.benchmark
    try:
        for name, batch in (("a3c", 600), ("dqn", 2_048)):
            for is_timed in (False, True):
                torch.backends.cudnn.benchmark = is_timed
                for what, time in _precision(probe, name, batch):
                    yield what + ", convolutions timed" * is_timed, time
    finally:
        torch.backends.cudnn.benchmark = before


def _precision(probe: Probe, name: str, batch: int) -> Figures:
    """Learn from ``batch`` images."""
    model = make_model(name, IMAGE, np.dtype(np.uint8), NUM_ACTIONS).to(probe.device)
    images = torch.zeros(probe.size(batch), *IMAGE, dtype=torch.uint8, device=probe.device)

    def learn(is_half: bool) -> None:
        with torch.autocast(probe.device.type, torch.bfloat16, enabled=is_half):
            results = model(images)
        results = results if isinstance(results, tuple) else (results,)
        torch.stack([each.float().square().mean() for each in results]).sum().backward()  # type: ignore[no-untyped-call]

    yield f"{name}, batch {batch}, float32", probe.time(lambda: learn(False), 20)
    torch.set_float32_matmul_precision("high")
    try:
        yield f"{name}, batch {batch}, TF32 products", probe.time(lambda: learn(False), 20)
    finally:
        torch.set_float32_matmul_precision("highest")
    yield f"{name}, batch {batch}, bfloat16", probe.time(lambda: learn(True), 20)


def threads(probe: Probe) -> Figures:
    """Fifteen operations and a wait, alone and beside a thread that enqueues all the time."""
    numbers = torch.zeros(1_000, device=probe.device)
    stop = threading.Event()

    def enqueue() -> None:
        others = torch.zeros(1_000, device=probe.device)
        while not stop.is_set():
            for _ in range(100):
                others.add_(1)
            probe.wait()

    def act() -> None:
        for _ in range(15):
            numbers.add_(1)

    yield "alone", probe.time(act)
    before = sys.getswitchinterval()
    for interval in (5e-3, 1e-4):
        sys.setswitchinterval(interval)
        stop.clear()
        thread = threading.Thread(target=enqueue)
        thread.start()
        try:
            yield f"beside a thread, switch interval {interval:g} s", probe.time(act)
        finally:
            stop.set()
            thread.join()
            sys.setswitchinterval(before)


def nccl(probe: Probe) -> Figures:
    """An all-reduce of one learner, as the team opens it: TCP store without libuv, two backends."""
    import torch.distributed as dist
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    backend = "cpu:gloo,cuda:nccl" if probe.is_cuda else "gloo"
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=False)
    dist.init_process_group(
        backend,
        store=PrefixStore("probe", store),
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=60),
    )
    try:
        gradient = torch.ones(probe.size(3_722_112), device=probe.device)
        flag = torch.tensor(0)
        yield "gradient", probe.time(lambda: dist.all_reduce(gradient), 50)
        yield "flag", probe.time(lambda: dist.all_reduce(flag), 50)
        yield "gradient is unchanged", bool((gradient == 1).all())
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
