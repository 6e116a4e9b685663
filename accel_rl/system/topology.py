"""The part of the machine that this process may use, and a plan of its cores.

Reading (`available_cpus`, `cpu_quota`, `free_memory`, `physical_cores`, `gpu_numa_node`) and
planning (`plan_cores`) are apart: a plan is a pure function of a `Machine`, which may be another
one. Linux reports all facts through ``sched_getaffinity``, cgroups and sysfs. Without them each CPU
counts as a core of its own, without quota and without NUMA node. No torch: simulator processes
import this.

``python -m accel_rl.system.topology`` prints the plan for this machine.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_LOGGER = logging.getLogger(__name__)


class Core(NamedTuple):
    """A core: the hyperthreads that this process may use, lowest first, and its NUMA node."""

    cpus: tuple[int, ...]
    numa_node: int | None = None


class Machine(NamedTuple):
    """The cores and CPU time that a process may use."""

    cores: tuple[Core, ...]  # in order of node and CPU
    quota: float | None = None  # of its cgroup, in CPUs; None: unlimited

    @property
    def cpus(self) -> tuple[int, ...]:
        """Every CPU, lowest first."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))

    def describe(self) -> str:
        """Return CPUs, cores, NUMA nodes and quota in one line."""
        nodes = sorted({core.numa_node for core in self.cores if core.numa_node is not None})
        where = f" on NUMA node {format_cpus(nodes)}" if nodes else ""
        quota = "no quota" if self.quota is None else f"a quota of {self.quota:g} CPUs"
        return f"CPUs {format_cpus(self.cpus)} of {len(self.cores)} cores{where}, {quota}"


class Seat(NamedTuple):
    """The rank that plans among the ranks of a machine, and the NUMA nodes of their GPUs."""

    rank: int = 0
    num_ranks: int = 1
    gpu_nodes: tuple[int | None, ...] | None = None


class CorePlan(NamedTuple):
    """The CPUs of each worker and of the server, for ``os.sched_setaffinity``."""

    worker_cpus: tuple[tuple[int, ...], ...]
    server_cpus: tuple[int, ...]

    def describe(self) -> str:
        """Return the CPUs of each worker in turn, then the server's, in one line."""
        places = self.worker_cpus
        if len(set(places)) == 1:
            places = places[:1]  # of all workers
        workers = " | ".join(format_cpus(cpus) for cpus in places)
        number = f"{len(self.worker_cpus)} worker{'s' * (len(self.worker_cpus) > 1)}"
        return f"{number} on CPUs {workers}; server on CPUs {format_cpus(self.server_cpus)}"


def available_cpus() -> list[int]:
    """Return the CPUs that this process may run on, lowest first."""
    if not hasattr(os, "sched_getaffinity"):  # only Linux tells
        return list(range(os.cpu_count() or 1))
    return sorted(os.sched_getaffinity(0))


def cpu_info(name: str) -> str:
    """Return what Linux says under ``name`` of the first CPU, or an empty text."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


def idle_seconds() -> float:
    """Return the time in which CPUs that this process may use had nothing to do, since the boot."""
    import psutil  # here, since workers start sooner without

    times = psutil.cpu_times(percpu=True)
    return float(sum(times[cpu].idle for cpu in available_cpus() if cpu < len(times)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the CPU seconds a second that the cgroup of this process (v1 or v2) may use, or None.

    A limit holds for everything below it, so the tightest one on the way up counts. None is
    unlimited.
    """
    quotas = (_folder_quota(folder) for folder in _cgroup_folders("cpu", root))
    return min((quota for quota in quotas if quota is not None), default=None)


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that are free on the machine and in the cgroup (v1 or v2) of this process.

    Pages of files that the cgroup could drop, ``inactive_file``, count as free.
    """
    import psutil  # not in simulator processes, which import this file

    lefts = (_folder_memory(folder) for folder in _cgroup_folders("memory", root))
    free = [psutil.virtual_memory().available, *(left for left in lefts if left is not None)]
    return max(0, min(free))


def physical_cores(cpus: Iterable[int], sysfs: Path = Path("/sys")) -> list[Core]:
    """Return the cores of ``cpus``, with only those hyperthreads, by NUMA node and CPU."""
    wanted = set(cpus)
    nodes = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in (sysfs / "devices/system/node").glob("node[0-9]*")
        for cpu in _parse_cpu_list(_read(folder / "cpulist") or "")
    }
    cores = set()
    for cpu in wanted:
        siblings = _read(sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        together = wanted & set(_parse_cpu_list(siblings or "")) | {cpu}
        cores.add(Core(tuple(sorted(together)), nodes.get(cpu)))
    return sorted(cores, key=_core_order)


def gpu_numa_node(pci_address: str, sysfs: Path = Path("/sys")) -> int | None:
    """Return the NUMA node of the GPU at ``pci_address``, None if it is unknown.

    ``pci_address`` is ``domain:bus:device.function`` in hexadecimal, as in ``0000:17:00.0``; the
    longer domain that NVIDIA's tools print (``00000000:17:00.0``) is understood too.
    """
    domain, rest = pci_address.lower().split(":", 1)
    text = _read(sysfs / "bus/pci/devices" / f"{int(domain, 16):04x}:{rest}" / "numa_node")
    return int(text) if text is not None and int(text) >= 0 else None


def read_machine() -> Machine:
    """Return the part of the machine that this process may use."""
    return Machine(tuple(physical_cores(available_cpus())), cpu_quota())


def plan_cores(
    *,
    num_workers: int | None = None,
    drives_gpu: bool = False,
    rank: int = 0,
    num_ranks: int = 1,
    cpus: Sequence[int] | None = None,
    gpu_nodes: Sequence[int | None] | None = None,
    machine: Machine | None = None,
) -> CorePlan:
    """Return a plan for the workers and the server of one rank.

    Every rank gets a run of cores, near its GPU as far as equal shares allow; they differ by one
    core where cores do not divide. A rank that drives a GPU keeps one core near it for the server;
    without one the workers cover every core and the server floats over them. Workers that are too
    few to cover the cores may each use all; more workers or ranks than cores share them.

    Args:
        num_workers: simulator processes of this rank; None: one for each core that the cgroup's
            quota pays for.
        drives_gpu: whether this rank's server drives a GPU.
        num_ranks: number of ranks on this machine.
        cpus: the only CPUs to use, for all ranks together; None: all that this process may.
        gpu_nodes: NUMA node of each rank's GPU, ``[num_ranks]``, None where unknown.
    """
    machine = machine or read_machine()
    cores = machine.cores if cpus is None else _only(machine, cpus)
    nodes = gpu_nodes or [None] * num_ranks
    share = _share(cores, rank, num_ranks, nodes)
    worker_cores, server_cpus = _divide(share, drives_gpu, nodes[rank])
    if num_workers is not None and num_workers < 1:
        raise ValueError(
            f"num_workers is {num_workers}; it must be at least 1, or none for one on each core"
        )
    paid_for = len(worker_cores)
    if machine.quota is not None:  # what is left over, less than one CPU, is for the server
        paid_for = max(1, min(paid_for, int(machine.quota / num_ranks)))
    num, planned = num_workers or paid_for, len(worker_cores)
    sharing = ""
    if num > planned:
        sharing = f"{num} workers share {planned} cores: num_workers={planned} may be faster"
    if num_ranks > len(cores):
        sharing = f"{num_ranks} ranks share {len(cores)} cores: each has less than one of its own"
    elif not sharing and drives_gpu and len(share) == 1:
        sharing = "the server of a GPU shares its one core with the workers"
    if sharing and rank == 0:
        warn_once(sharing)
    if num < planned:  # the kernel knows which are idle, and a simulator may have threads
        every = tuple(sorted(cpu for core in worker_cores for cpu in core.cpus))
        return CorePlan((every,) * num, server_cpus)
    own = tuple(worker_cores[worker % planned].cpus for worker in range(num))
    return CorePlan(own, server_cpus)


def _divide(
    share: tuple[Core, ...], drives_gpu: bool, node: int | None
) -> tuple[tuple[Core, ...], tuple[int, ...]]:
    """Return the workers' cores, and the server's CPUs: all, or a core near a GPU's ``node``.

    If there is one core, both have it.
    """
    if not drives_gpu:
        return share, tuple(sorted(cpu for core in share for cpu in core.cpus))
    kept = min(share, key=lambda core: core.numa_node != node)  # the first of equals
    return tuple(core for core in share if core != kept) or share, kept.cpus


def format_cpus(cpus: Iterable[int]) -> str:
    """Return CPU ids as the kernel writes them: ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _only(machine: Machine, cpus: Sequence[int]) -> tuple[Core, ...]:
    """Return the machine's cores cut down to ``cpus``."""
    missing = sorted(set(cpus) - set(machine.cpus))
    if missing or not cpus:
        found = (
            f"names CPUs {format_cpus(missing)}, which are not available"
            if missing
            else "names no CPU"
        )
        raise ValueError(
            f"cpus={list(cpus)} {found}; this process may use CPUs {format_cpus(machine.cpus)}: "
            "choose among them, or leave cpus out"
        )
    cores = (
        Core(tuple(c for c in core.cpus if c in cpus), core.numa_node) for core in machine.cores
    )
    return tuple(core for core in cores if core.cpus)


def _share(
    cores: Sequence[Core], rank: int, num_ranks: int, nodes: Sequence[int | None]
) -> tuple[Core, ...]:
    """Return the run of cores of one rank, at least one core."""
    ordered = sorted(cores, key=_core_order)
    by_node = sorted(
        range(num_ranks), key=lambda r: (-1 if (node := nodes[r]) is None else node, r)
    )
    position = by_node.index(rank)
    first = position * len(ordered) // num_ranks
    end = (position + 1) * len(ordered) // num_ranks
    return tuple(ordered[first : max(end, first + 1)])


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning, unless it was logged before."""
    _LOGGER.warning(message)


def _core_order(core: Core) -> tuple[int, int]:
    return (-1 if core.numa_node is None else core.numa_node, core.cpus[0])


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _parse_cpu_list(text: str) -> list[int]:
    """Return CPU ids from a text of the kernel such as ``0-3,8``."""
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def _cgroup_folders(controller: str, root: Path) -> list[Path]:
    """Return folders of this process's cgroup and those above it with files of ``controller``.

    Inside a container the path in ``/proc/self/cgroup`` may be the host's; the way up then ends at
    the container's own root, where its limit is.
    """
    groups = (root / "proc/self/cgroup").read_text() if (root / "proc/self/cgroup").exists() else ""
    folders: list[Path] = []
    for line in groups.splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / name for name in (controller, controllers)]
        else:
            continue
        inner = Path(path.lstrip("/"))
        folders += [mount / part for mount in mounts for part in (inner, *inner.parents)]
    return folders


def _folder_quota(folder: Path) -> float | None:
    """Return the quota set in one cgroup folder of either version."""
    v2 = _read(folder / "cpu.max")
    if v2 is not None:
        quota, period = v2.split()
        return None if quota == "max" else int(quota) / int(period)
    v1 = [_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if v1[0] is None or v1[1] is None or int(v1[0]) < 0:
        return None
    return int(v1[0]) / int(v1[1])


def _folder_memory(folder: Path) -> int | None:
    """Return the bytes that one cgroup folder's limit leaves; None without a limit."""
    for limit_name, used_name, files in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _read(folder / limit_name), _read(folder / used_name)
        if limit is None or used is None or limit == "max":
            continue
        lines = (_read(folder / "memory.stat") or "").splitlines()
        idle = next((line.split()[1] for line in lines if line.startswith(f"{files} ")), 0)
        return int(limit) - int(used) + int(idle)
    return None


if __name__ == "__main__":
    print(f"this process may use {read_machine().describe()}")
    print(plan_cores().describe())
