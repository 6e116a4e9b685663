"""Reading a machine from faked system folders, and plans for machines of many shapes."""

import itertools
import logging
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from accel_rl.system import topology
from accel_rl.system.topology import (
    Core,
    Machine,
    available_cpus,
    cpu_quota,
    free_memory,
    gpu_numa_node,
    physical_cores,
    plan_cores,
    read_machine,
)

# Two sockets of 20 cores, two hyperthreads each, numbered as Linux does: socket 0 has CPUs 0-19 and
# 40-59, socket 1 has 20-39 and 60-79; CPUs c and c + 40 are one core.
DGX = Machine(tuple(Core((c, c + 40), c // 20) for c in range(40)))
# A cloud machine: four virtual CPUs, no hyperthreads told of.
CLOUD = Machine(tuple(Core((c,), 0) for c in range(4)))
MASKED = Machine((Core((3,), 0), Core((7,), 0)))
TINY = Machine((Core((5,), None),))
MACHINES = {"dgx": DGX, "cloud": CLOUD, "masked": MASKED, "tiny": TINY}


@pytest.fixture(autouse=True)
def forget_warnings() -> None:
    topology.warn_once.cache_clear()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def fake_sysfs(root: Path, siblings: dict[int, str], nodes: dict[int, str]) -> Path:
    for cpu, text in siblings.items():
        folder = root / f"devices/system/cpu/cpu{cpu}/topology"
        write(folder / "thread_siblings_list", text)
    for node, text in nodes.items():
        write(root / f"devices/system/node/node{node}/cpulist", text)
    return root


# ---- reading -------------------------------------------------------------------------------------


def test_available_cpus_are_the_affinity_mask() -> None:
    assert available_cpus() == sorted(os.sched_getaffinity(0))


def test_physical_cores_groups_hyperthreads_and_knows_their_node(tmp_path: Path) -> None:
    siblings = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}
    sysfs = fake_sysfs(tmp_path, siblings, {0: "2-3,6-7", 1: "0-1,4-5"})
    assert physical_cores(range(8), sysfs) == [
        Core((2, 6), 0),
        Core((3, 7), 0),
        Core((0, 4), 1),
        Core((1, 5), 1),
    ]


def test_physical_cores_leaves_out_siblings_outside_the_mask(tmp_path: Path) -> None:
    sysfs = fake_sysfs(tmp_path, {3: "3,7", 7: "3,7", 9: "8-9"}, {0: "0-9"})
    assert physical_cores([9, 3], sysfs) == [Core((3,), 0), Core((9,), 0)]


def test_physical_cores_without_sysfs_is_one_core_per_cpu(tmp_path: Path) -> None:
    assert physical_cores([4, 2], tmp_path) == [Core((2,)), Core((4,))]


def test_read_machine_covers_the_mask_once() -> None:
    machine = read_machine()
    assert list(machine.cpus) == available_cpus()


QUOTAS = """
1.5 | 0::/a/b | a/b/cpu.max 150000 100000
None | 0::/ | cpu.max max 100000
2.0 | 0::/a/b | a/cpu.max 100000 50000 | a/b/cpu.max 300000 100000
2.5 | 0::/of/the/host | cpu.max 250000 100000
0.5 | 3:cpu,cpuacct:/ | cpu,cpuacct/cpu.cfs_quota_us 50000 | cpu,cpuacct/cpu.cfs_period_us 100000
None | 3:cpu:/ | cpu/cpu.cfs_quota_us -1 | cpu/cpu.cfs_period_us 100000
None | 0::/a
"""
"""the quota, the cgroup of the process, and files below /sys/fs/cgroup"""


@pytest.mark.parametrize("line", QUOTAS.strip().split("\n"))
def test_cpu_quota_in_each_cgroup_layout_is_found(line: str, tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None  # there is nothing at all
    expected, cgroup, *files = line.split(" | ")
    write(tmp_path / "proc/self/cgroup", cgroup)
    for file in files:
        name, _, text = file.partition(" ")
        write(tmp_path / "sys/fs/cgroup" / name, text)
    assert str(cpu_quota(tmp_path)) == expected


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/a", {"max": "700", "current": "500", "stat": "anon 450\ninactive_file 40"}, 240),
        ("0::/a/b", {"max": "700", "current": "500", "b/max": "900", "b/current": "100"}, 200),
        ("0::/a", {"max": "max", "current": "500"}, 1000),
        ("0::/a", {"max": "500", "current": "600"}, 0),
        (
            "4:memory:/a",
            {
                "limit_in_bytes": "900",
                "usage_in_bytes": "800",
                "stat": "inactive_file 1\ntotal_inactive_file 50",
            },
            150,
        ),
        ("4:memory:/a", {"limit_in_bytes": "9223372036854771712", "usage_in_bytes": "8"}, 1000),
        ("0::/a", {}, 1000),
    ],
    ids=["v2", "v2-parent", "v2-max", "v2-beyond", "v1", "v1-unlimited", "no-file"],
)
def test_free_memory_in_each_cgroup_layout_is_found(cgroup, files, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    write(tmp_path / "proc/self/cgroup", cgroup)
    mount = tmp_path / "sys/fs/cgroup" / ("memory" if "memory" in cgroup else "")
    for name, text in files.items():
        folder, _, kind = name.rpartition("/")
        write(mount / "a" / folder / f"memory.{kind}", text)
    assert free_memory(tmp_path) == expected


def test_gpu_numa_node_is_read_by_pci_address(tmp_path: Path) -> None:
    path = tmp_path / "bus/pci/devices/0000:af:00.0/numa_node"
    for told, node in (("1", 1), ("-1", None)):
        write(path, told)
        assert gpu_numa_node("0000:af:00.0", tmp_path) == node
        assert gpu_numa_node("00000000:AF:00.0", tmp_path) == node
    assert gpu_numa_node("0000:b0:00.0", tmp_path) is None


# ---- planning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_plan_never_leaves_the_mask_and_places_everybody(name: str) -> None:
    machine = MACHINES[name]
    for drives_gpu, num_workers, num_ranks in itertools.product(
        (False, True), (None, 1, 3, 100), (1, 2, 5)
    ):
        for rank in range(num_ranks):
            plan = plan_cores(
                num_workers=num_workers,
                drives_gpu=drives_gpu,
                rank=rank,
                num_ranks=num_ranks,
                machine=machine,
            )
            assert num_workers is None or len(plan.worker_cpus) == num_workers
            for cpus in (*plan.worker_cpus, plan.server_cpus):
                assert cpus and set(cpus) <= set(machine.cpus)


ALL_OF_CLOUD = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("machine", "options", "worker_cpus", "server_cpus"),
    [
        (DGX, {}, [(c, c + 40) for c in range(40)], range(80)),
        (MASKED, {}, [(3,), (7,)], (3, 7)),
        (DGX, {"cpus": [60, 2, 42]}, [(2, 42), (60,)], (2, 42, 60)),
        # Workers that do not cover the cores may use all of them.
        (DGX, {"num_workers": 1}, [range(80)], range(80)),
        (Machine(CLOUD.cores, 1.5), {"num_workers": 4}, [(0,), (1,), (2,), (3,)], range(4)),
        # A quota is divided among the ranks.
        (Machine(CLOUD.cores, 2.0), {"num_ranks": 2}, [(0, 1)], (0, 1)),
        (CLOUD, {"num_workers": 2, "drives_gpu": True}, [(1, 2, 3)] * 2, (0,)),
        (CLOUD, {"num_workers": 4}, [(0,), (1,), (2,), (3,)], range(4)),
        (Machine(CLOUD.cores, 2.0), {}, [ALL_OF_CLOUD] * 2, range(4)),
    ],
)
def test_plan_is_as_it_should_be(machine, options, worker_cpus, server_cpus) -> None:
    plan = plan_cores(machine=machine, **options)
    assert [*plan.worker_cpus] == [tuple(cpus) for cpus in worker_cpus]
    assert plan.server_cpus == tuple(server_cpus)


def test_eight_ranks_of_the_paper_have_five_cores_each_near_their_gpu() -> None:
    nodes = [0, 0, 0, 0, 1, 1, 1, 1]
    taken: set[int] = set()
    for rank in range(8):
        plan = plan_cores(machine=DGX, drives_gpu=True, rank=rank, num_ranks=8, gpu_nodes=nodes)
        cpus = {cpu for some in (*plan.worker_cpus, plan.server_cpus) for cpu in some}
        assert len(plan.worker_cpus) == 4
        assert len(cpus) == 10 and not cpus & taken
        assert {cpu % 40 // 20 for cpu in cpus} == {nodes[rank]}
        taken |= cpus
    assert taken == set(range(80))


def test_ranks_whose_gpus_are_listed_out_of_order_are_near_them() -> None:
    for rank, node in enumerate([1, 0]):
        plan = plan_cores(
            machine=DGX, drives_gpu=True, rank=rank, num_ranks=2, gpu_nodes=[1, 0], num_workers=4
        )
        assert {cpu % 40 // 20 for cpu in plan.server_cpus} == {node}


def test_cores_that_do_not_divide_are_all_given_out_once() -> None:
    shares = [plan_cores(machine=CLOUD, rank=r, num_ranks=3).server_cpus for r in range(3)]
    assert sorted(cpu for share in shares for cpu in share) == [0, 1, 2, 3]
    assert sorted(map(len, shares)) == [1, 1, 2]


@pytest.mark.parametrize(
    ("quota", "expected"), [(None, 4), (64.0, 4), (4.0, 4), (2.7, 2), (1.5, 1), (0.5, 1)]
)
def test_quota_below_the_cpu_count_lowers_the_number_of_workers(quota, expected) -> None:
    machine = Machine(CLOUD.cores, quota)
    assert len(plan_cores(machine=machine).worker_cpus) == expected


@pytest.mark.parametrize(
    ("machine", "options", "tokens"),
    [
        (CLOUD, {"num_workers": 0}, "num_workers is 0; .*at least 1"),
        (MASKED, {"cpus": [3, 4, 5, 9]}, "CPUs 4-5,9, .*not available.*CPUs 3,7"),
        (MASKED, {"cpus": []}, "no CPU; .*CPUs 3,7"),
    ],
)
def test_what_cannot_be_had_is_refused(machine: Machine, options: Any, tokens: str) -> None:
    with pytest.raises(ValueError, match=tokens):
        plan_cores(machine=machine, **options)


# ---- warnings ------------------------------------------------------------------------------------


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(
    ("machine", "calls", "expected", "warning"),
    [
        (
            MASKED,
            [{"num_workers": 5}] * 3,
            [(((3,), (7,), (3,), (7,), (3,)), (3, 7))] * 3,
            "5 workers share 2 cores.*num_workers=2",
        ),
        (
            MASKED,
            [{"rank": rank, "num_ranks": 4} for rank in range(4)],
            [(((cpu,),), (cpu,)) for cpu in (3, 3, 7, 7)],
            "4 ranks share 2 cores",
        ),
        (TINY, [{"drives_gpu": True}], [(((5,),), (5,))], "server of a GPU shares its one core"),
    ],
    ids=["workers", "ranks", "server"],
)
def test_those_who_share_cores_are_told_so_once(machine, calls, expected, warning, caplog) -> None:
    assert [plan_cores(machine=machine, **each) for each in calls] == expected
    (said,) = warnings_of(caplog)
    assert re.search(warning, said)


def test_only_the_first_rank_warns(caplog: pytest.LogCaptureFixture) -> None:
    plan_cores(machine=MASKED, rank=1, num_ranks=4)
    assert warnings_of(caplog) == []
