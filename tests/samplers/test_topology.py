"""Reading a machine from faked system folders, and plans for machines of many shapes."""

import itertools
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from accel_rl import topology
from accel_rl.topology import (
    Core,
    Machine,
    available_cpus,
    cpu_quota,
    format_cpus,
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
    topology._warn_once.cache_clear()


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


def test_available_cpus_without_affinity_calls_counts_the_cpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert available_cpus() == [0, 1, 2]


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


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "150000 100000"}, 1.5),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/cpu.max": "100000 50000",
                "sys/fs/cgroup/a/b/cpu.max": "300000 100000",
            },
            2.0,
        ),
        ({"proc/self/cgroup": "0::/of/the/host", "sys/fs/cgroup/cpu.max": "250000 100000"}, 2.5),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/job\n0::/",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        ({"proc/self/cgroup": "0::/a"}, None),
        ({}, None),
    ],
    ids=["v2", "v2-max", "v2-parent", "v2-host-path", "v1", "v1-unlimited", "no-file", "nothing"],
)
def test_cpu_quota_in_each_cgroup_layout_is_found(
    files: dict[str, str], expected: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        write(tmp_path / name, text)
    assert cpu_quota(tmp_path) == expected


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
def test_free_memory_in_each_cgroup_layout_is_found(
    cgroup: str, files: dict[str, str], expected: int, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    write(tmp_path / "proc/self/cgroup", cgroup)
    mount = tmp_path / "sys/fs/cgroup" / ("memory" if "memory" in cgroup else "")
    for name, text in files.items():
        folder, _, kind = name.rpartition("/")
        write(mount / "a" / folder / f"memory.{kind}", text)
    assert free_memory(tmp_path) == expected


@pytest.mark.parametrize("address", ["0000:af:00.0", "00000000:AF:00.0"])
def test_gpu_numa_node_is_read_by_pci_address(address: str, tmp_path: Path) -> None:
    write(tmp_path / "bus/pci/devices/0000:af:00.0/numa_node", "1")
    assert gpu_numa_node(address, tmp_path) == 1


def test_gpu_numa_node_that_is_not_told_is_none(tmp_path: Path) -> None:
    write(tmp_path / "bus/pci/devices/0000:af:00.0/numa_node", "-1")
    assert gpu_numa_node("0000:af:00.0", tmp_path) is None
    assert gpu_numa_node("0000:b0:00.0", tmp_path) is None


# ---- planning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_plan_never_leaves_the_mask_and_places_everybody(name: str) -> None:
    machine = MACHINES[name]
    for drives_gpu, workers_per_core, num_workers, num_ranks in itertools.product(
        (False, True), (1, 2, 3), (None, 1, 3, 100), (1, 2, 5)
    ):
        for rank in range(num_ranks):
            plan = plan_cores(
                num_workers=num_workers,
                workers_per_core=workers_per_core,
                drives_gpu=drives_gpu,
                rank=rank,
                num_ranks=num_ranks,
                machine=machine,
            )
            assert num_workers is None or len(plan.worker_cpus) == num_workers
            for cpus in (*plan.worker_cpus, plan.server_cpus):
                assert cpus and set(cpus) <= set(machine.cpus)


def test_plan_without_gpu_has_workers_on_every_core_and_the_server_on_all() -> None:
    plan = plan_cores(machine=DGX)
    assert plan.worker_cpus == tuple((c, c + 40) for c in range(40))
    assert plan.server_cpus == tuple(range(80))


def test_plan_with_gpu_keeps_one_core_near_it_for_the_server() -> None:
    plan = plan_cores(machine=DGX, drives_gpu=True, gpu_nodes=[1])
    assert plan.server_cpus == (20, 60)
    assert len(plan.worker_cpus) == 39
    assert (20, 60) not in plan.worker_cpus


def test_two_workers_per_core_with_hyperthreads_have_one_each() -> None:
    plan = plan_cores(machine=DGX, workers_per_core=2)
    assert plan.worker_cpus[0::2] == tuple((c,) for c in range(40))  # group 0
    assert plan.worker_cpus[1::2] == tuple((c + 40,) for c in range(40))  # group 1


def test_two_workers_per_core_without_hyperthreads_share_its_cpu() -> None:
    plan = plan_cores(machine=CLOUD, workers_per_core=2)
    assert plan.worker_cpus == ((0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,))


def test_workers_with_scattered_mask_stay_on_it() -> None:
    plan = plan_cores(machine=MASKED)
    assert plan.worker_cpus == ((3,), (7,))
    assert plan.server_cpus == (3, 7)


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
def test_quota_below_the_cpu_count_lowers_the_number_of_workers(
    quota: float | None, expected: int
) -> None:
    machine = Machine(CLOUD.cores, quota)
    assert len(plan_cores(machine=machine).worker_cpus) == expected
    assert len(plan_cores(machine=machine, workers_per_core=2).worker_cpus) == 2 * expected


def test_workers_that_do_not_cover_the_cores_may_use_all_of_them() -> None:
    assert plan_cores(machine=DGX, num_workers=1).worker_cpus == (tuple(range(80)),)
    plan = plan_cores(machine=CLOUD, num_workers=2, drives_gpu=True)
    assert plan.worker_cpus == ((1, 2, 3),) * 2 and plan.server_cpus == (0,)
    assert plan_cores(machine=CLOUD, num_workers=4).worker_cpus == ((0,), (1,), (2,), (3,))
    plan = plan_cores(machine=CLOUD, num_workers=6, workers_per_core=2)
    assert plan.worker_cpus == ((0, 1, 2, 3),) * 6
    assert plan_cores(machine=Machine(CLOUD.cores, 2.0)).worker_cpus == ((0, 1, 2, 3),) * 2


def test_workers_with_several_cores_have_neighbours() -> None:
    plan = plan_cores(machine=DGX, cores_per_worker=3)
    assert plan.worker_cpus[:2] == ((0, 1, 2, 40, 41, 42), (3, 4, 5, 43, 44, 45))
    assert len(plan.worker_cpus) == 13  # one core of 40 is left over
    assert plan.server_cpus == tuple(range(80))
    plan = plan_cores(machine=CLOUD, cores_per_worker=3, drives_gpu=True)
    assert plan.worker_cpus == ((1, 2, 3),) and plan.server_cpus == (0,)
    plan = plan_cores(machine=CLOUD, cores_per_worker=2, num_workers=1)
    assert plan.worker_cpus == ((0, 1),)


@pytest.mark.parametrize(("quota", "expected"), [(4.0, 2), (3.9, 1), (1.0, 1)])
def test_quota_pays_for_all_cores_of_a_worker(quota: float, expected: int) -> None:
    plan = plan_cores(machine=Machine(CLOUD.cores, quota), cores_per_worker=2)
    assert plan.worker_cpus == ((0, 1), (2, 3))[:expected]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"cores_per_worker": 5}, r"cores_per_worker is 5; 1 worker .* use cores_per_worker=4$"),
        ({"cores_per_worker": 4, "drives_gpu": True}, "are 3 for them: use cores_per_worker=3"),
        ({"cores_per_worker": 2, "num_workers": 3}, r"3 workers .* use cores_per_worker=1 or few"),
    ],
)
def test_workers_that_are_to_have_more_cores_than_there_are_raise(
    options: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        plan_cores(machine=CLOUD, **options)


def test_quota_does_not_lower_an_explicit_number_of_workers() -> None:
    assert len(plan_cores(machine=Machine(CLOUD.cores, 1.5), num_workers=4).worker_cpus) == 4


def test_quota_is_divided_among_the_ranks() -> None:
    machine = Machine(DGX.cores, 6.0)
    for rank in range(2):
        assert len(plan_cores(machine=machine, rank=rank, num_ranks=2).worker_cpus) == 3


def test_explicit_cpus_restrict_the_plan_to_them() -> None:
    plan = plan_cores(machine=DGX, cpus=[60, 2, 42])
    assert plan.worker_cpus == ((2, 42), (60,))
    assert plan.server_cpus == (2, 42, 60)


@pytest.mark.parametrize(
    ("cpus", "match"),
    [
        ([3, 4, 5, 9], r"names CPUs 4-5,9, which are not available; this process may use CPUs 3,7"),
        ([], "names no CPU; this process may use CPUs 3,7"),
    ],
    ids=["outside", "empty"],
)
def test_explicit_cpus_that_cannot_be_had_raise(cpus: list[int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        plan_cores(machine=MASKED, cpus=cpus)


def test_no_workers_raises() -> None:
    with pytest.raises(ValueError, match="num_workers is 0; it must be at least 1"):
        plan_cores(machine=CLOUD, num_workers=0)


# ---- warnings ------------------------------------------------------------------------------------


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_more_workers_than_cores_share_them_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(3):
        plan = plan_cores(machine=MASKED, num_workers=5)
    assert plan.worker_cpus == ((3,), (7,), (3,), (7,), (3,))
    assert warnings_of(caplog) == [
        "5 workers share 2 cores, planned for 2: num_workers=2 may be faster"
    ]


def test_more_ranks_than_cores_share_them_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plans = [plan_cores(machine=MASKED, rank=r, num_ranks=4) for r in range(4)]
    assert [plan.server_cpus for plan in plans] == [(3,), (3,), (7,), (7,)]
    assert warnings_of(caplog) == ["4 ranks share 2 cores: each has less than one of its own"]


def test_only_the_first_rank_warns(caplog: pytest.LogCaptureFixture) -> None:
    plan_cores(machine=MASKED, rank=1, num_ranks=4)
    assert warnings_of(caplog) == []


def test_gpu_on_one_core_shares_it_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    plan = plan_cores(machine=TINY, drives_gpu=True)
    assert plan == (((5,),), (5,))
    assert warnings_of(caplog) == ["the server of a GPU shares its one core with the workers"]


@pytest.mark.parametrize("workers_per_core", [1, 2])
@pytest.mark.parametrize("name", MACHINES)
def test_default_plan_gives_no_warning(
    name: str, workers_per_core: int, caplog: pytest.LogCaptureFixture
) -> None:
    plan_cores(machine=MACHINES[name], workers_per_core=workers_per_core)
    assert warnings_of(caplog) == []


# ---- texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "text"), [([], ""), ([4], "4"), ([3, 1, 2], "1-3"), ([0, 1, 5, 7, 8], "0-1,5,7-8")]
)
def test_format_cpus_writes_runs_as_the_kernel_does(cpus: list[int], text: str) -> None:
    assert format_cpus(cpus) == text


def test_describe_tells_who_runs_where() -> None:
    plan = plan_cores(machine=DGX, cpus=[0, 40, 1, 41, 2], drives_gpu=True)
    assert plan.describe() == "2 workers on CPUs 1,41 | 2; server on CPUs 0,40"


@pytest.mark.parametrize(
    ("machine", "text"),
    [
        (DGX, "CPUs 0-79 of 40 cores on NUMA node 0-1, no quota"),
        (Machine(TINY.cores, 0.5), "CPUs 5 of 1 cores, a quota of 0.5 CPUs"),
    ],
    ids=["dgx", "tiny"],
)
def test_machine_describes_what_there_is(machine: Machine, text: str) -> None:
    assert machine.describe() == text
