"""All-reduce in shared memory: right whatever the interleaving, and no wait without an end."""

import gc
import os
import random
import subprocess
import textwrap
import time

import pytest
import torch
from launched_runs import started
from shared_groups import in_all, make_groups
from tiers import PROCESSES, slow
from torch import Tensor

from accel_rl.parallel import SharedGroup, TeamError
from accel_rl.parallel.shared_group import Address


@pytest.mark.parametrize("size", [2, 7])
def test_sums_maxima_and_broadcasts_are_those_of_all_and_equal_to_the_bit(size: int) -> None:
    groups = make_groups(size)
    g = torch.Generator().manual_seed(size)
    shapes = [(), (1,), (63,), (64, 3), (100_003,), (5,), (0,), (300_000,), ()]
    kinds = [torch.float32, torch.float64, torch.int64]
    # The memory grows from one to another, and is used for smaller ones after that.
    given = [
        (torch.randn(size, *shape, generator=g) * 1000).to(kinds[i % 3])
        for i, shape in enumerate(shapes * 2)
    ]

    def act(group: SharedGroup, rank: int) -> list[Tensor]:
        delays, found = random.Random(rank), []
        for numbers in given:
            for reduce_ in (group.sum_, group.maximum_, group.broadcast_):
                time.sleep(delays.choice([0, 0, 0.002]))
                x = numbers[rank].clone()
                reduce_(x)
                found.append(x)
        return found

    found = in_all(groups, act)
    for numbers in given:
        total = numbers[0].clone()  # in the order of the learners
        for each in numbers[1:]:
            total = total + each
        for expected in (total, numbers.amax(0), numbers[0]):
            results = [each.pop(0) for each in found]
            assert all(torch.equal(result, expected) for result in results)
    assert not any(found)
    for group in groups:
        group.close()


def test_many_quick_rounds_lose_no_mark() -> None:
    groups = make_groups(3)

    def act(group: SharedGroup, rank: int) -> list[int]:
        totals = []
        for number in range(500):
            x = torch.tensor(number * 10 + rank)
            group.sum_(x)
            totals.append(int(x))
        return totals

    expected = [30 * number + 3 for number in range(500)]
    assert in_all(groups, act) == [expected] * 3


def test_learner_that_does_not_come_is_named() -> None:
    first, second, _ = make_groups(3, timeout_seconds=0.3)

    def act(group: SharedGroup, rank: int) -> None:
        with pytest.raises(TeamError, match=r"learner 2 has not answered within 0.3 s; .*raise"):
            group.sum_(torch.ones(5))

    in_all([first, second], act)


OTHER = """
    import sys, time
    import torch
    from accel_rl.parallel.shared_group import Address, SharedGroup

    group = SharedGroup(1, 2, 100.0)
    print(*group.address, flush=True)
    first = Address(*map(int, sys.stdin.readline().split()))
    group.connect([first, group.address])
    x = torch.tensor(4.0)
    group.sum_(x)
    assert x == 7
    sys.stdin.readline()
    """


@pytest.mark.slow
@PROCESSES
@pytest.mark.parametrize("is_killed", [True, slow(False)])
def test_learner_that_has_ended_is_named_at_once_and_nothing_is_left(is_killed: bool) -> None:
    with started("-c", ""):  # there is a process that forks
        pass
    gc.collect()  # of other tests
    before = set(os.listdir("/proc/self/fd"))
    group = SharedGroup(0, 2, 100.0)
    with started("-c", textwrap.dedent(OTHER), stdin=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None
        address = Address(*map(int, other.stdout.readline().split()))
        other.stdin.write(" ".join(map(str, group.address)) + "\n")
        other.stdin.flush()
        group.connect([group.address, address])
        x = torch.tensor(3.0)
        group.sum_(x)
        assert x == 7
        if is_killed:
            other.kill()
        else:
            other.stdin.write("\n")
            other.stdin.flush()
        for _ in range(2):  # while it is waited for, and before
            with pytest.raises(TeamError, match="learner 1 has ended"):
                group.sum_(torch.ones(100_000))
        other.stdin.close()
        other.wait()
    group.close()
    group.close()
    late = SharedGroup(0, 2, 1.0)
    with pytest.raises(TeamError, match=rf"cannot reach learner 1 \(pid {address.pid}\): No such"):
        late.connect([late.address, address])
    late.close()
    gc.collect()  # errors hold frames, and these the memory
    assert set(os.listdir("/proc/self/fd")) == before
