"""The parameter store among processes that push, are stopped and are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from launched_runs import started
from store_learners import Sum, push, zeros
from tiers import PROCESSES, slow
from torch import Tensor

from accel_rl.parallel import ParameterStore, StoreSync, create_store, open_store

pytestmark = PROCESSES
SIZE = 60_000


@contextlib.contextmanager
def learners(**arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """The processes of `store_learners`, ended by their own accord or with the test."""
    script = str(Path(__file__).parents[1] / "helpers" / "store_learners.py")
    with started(script, json.dumps(arguments), stderr=None) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def store() -> Iterator[ParameterStore]:
    with contextlib.closing(create_store(zeros(SIZE), Sum(), 3)) as store:
        yield store


def test_pushes_of_many_processes_are_all_in_the_sum(store: ParameterStore) -> None:
    values, pushes = [1, 10, 100, 1000], 20
    with learners(
        task="add", address=store.address, size=SIZE, values=values, pushes=pushes
    ) as process:
        statuses = json.loads(process.communicate(timeout=100)[0])
    flats, num_updates = store.read()
    assert statuses == [0, 0, 0, 0]
    assert flats["parameters"].unique().tolist() == [pushes * 1111]
    assert flats["count"].unique().tolist() == [pushes * 4]
    assert num_updates == pushes * 4


def test_pushes_of_threads_that_share_a_store_are_all_in_the_sum(store: ParameterStore) -> None:
    def learn(value: int) -> None:
        sync = StoreSync(zeros(SIZE), store, Sum(), None)
        for _ in range(50):
            push(sync, value)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(learn, (1, 10, 100)))
    flats, num_updates = store.read()
    assert flats["parameters"].unique().tolist() == [50 * 111]
    assert num_updates == 150


def test_stopped_holder_makes_others_time_out_and_frees_its_lock_when_killed(store) -> None:
    parameters = zeros(SIZE)
    with (
        contextlib.closing(
            open_store(store.address, parameters, Sum(), timeout_seconds=0.3)
        ) as impatient,
        learners(task="stop", address=store.address, size=SIZE) as process,
    ):
        sync = StoreSync(parameters, impatient, Sum(), None)
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        with pytest.raises(
            TimeoutError, match=rf"chunk 0 .* locked for 0.3 seconds; process {pid} holds it"
        ):
            push(sync, 1)
        os.kill(pid, signal.SIGKILL)
        assert json.loads(process.communicate(timeout=100)[0]) == signal.SIGKILL
        before = impatient.chunks[0].look()[1]
        push(sync, 1)
    assert before == 0  # the killed push is lost, and the one that gave up at this chunk
    assert [chunk.look()[1] for chunk in store.chunks] == [1, 2, 2]


class Watcher:
    """Reads while others push: what it saw of chunks that were not whole, or went backwards."""

    def __init__(self, store: ParameterStore) -> None:
        self._store = store
        self._sync = StoreSync(zeros(SIZE), store, Sum(), None)
        self._latest = [0.0] * len(store.chunks)
        self.num_reads = 0
        self.wrong: list[str] = []

    def read(self) -> None:
        flats, _ = self._store.read()
        self._check([flats["parameters"], flats["count"]])
        self._sync.pull()
        self._check([self._sync.parameters.parameter])
        self.num_reads += 1

    def _check(self, flats: list[Tensor]) -> None:
        for chunk in self._store.chunks:
            seen = {end.item() for flat in flats for end in flat[chunk.elements].aminmax()}
            if len(seen) > 1 or min(seen) < self._latest[chunk.index]:
                self.wrong.append(f"chunk {chunk.index}: {seen}, after {self._latest}")
            self._latest[chunk.index] = max(seen)


@pytest.mark.parametrize(
    ("kills", "self_kills"),
    [
        slow(30, 0.2),
        slow(30, 0.0),
        pytest.param(500, 0.2, marks=pytest.mark.nightly),
        pytest.param(500, 0.0, marks=pytest.mark.nightly),
    ],
)
def test_store_survives_learners_that_are_killed(store, kills, self_kills) -> None:
    """Between writing and the flip, or anywhere."""
    pushed, is_over = [0, 0], threading.Event()

    def learn(thread: int) -> None:
        sync = StoreSync(zeros(SIZE), store, Sum(), None)
        while not is_over.is_set():
            push(sync, 1)
            pushed[thread] += 1

    watcher = Watcher(store)
    arguments = {"address": store.address, "size": SIZE, "learners": 4, "kills": kills}
    with learners(task="stress", self_kills=self_kills, **arguments) as process:
        with ThreadPoolExecutor(2) as threads:
            learned = threads.map(learn, range(2))
            while process.poll() is None:
                watcher.read()
            is_over.set()
            list(learned)
        found = json.loads(process.communicate(timeout=100)[0])
    watcher.read()
    assert not watcher.wrong
    assert watcher.num_reads > 1 and min(pushed) > 1
    assert found["failures"] == 0 and found["died"] >= kills
    parameters = store.read()[0]["parameters"]
    for chunk in store.chunks:
        assert parameters[chunk.elements].unique().tolist() == [chunk.look()[1]]
        # Killed by themselves: exactly what was not flipped is lost. From outside: a learner may
        # have died between a flip and counting it.
        counted = found["flips"][chunk.index] + sum(pushed)
        assert counted <= chunk.look()[1] <= counted + found["killed"]
