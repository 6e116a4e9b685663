"""Learners in processes of their own, for the tests of the parameter store.

    python store_learners.py '{"task": ..., "address": ..., ...}'

One interpreter loads torch and forks the learners. Prints what happened as JSON.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from accel_rl.parallel import FlatParameters, StoreSync, open_store
from accel_rl.parallel.store import Chunk

MAX_CHUNKS = 16


@dataclass(frozen=True)
class Sum:
    """Adds gradients up, and counts them for each element; whole numbers stay exact."""

    def make_state(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"count": torch.zeros_like(parameter)}

    def rate(self, lr: float, step: int) -> float:
        return lr

    def step_(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float | Tensor
    ) -> None:
        parameter.add_(gradient)
        state["count"].add_(1)


def zeros(size: int) -> FlatParameters:
    """Parameters of a model with ``size`` of them, all 0."""
    model = nn.Linear(size, 1, bias=False)
    nn.init.zeros_(model.weight)
    return FlatParameters(model)


def connect(address: dict[str, Any], size: int) -> StoreSync:
    parameters = zeros(size)
    return StoreSync(parameters, open_store(address, parameters, Sum()), Sum(), None)


def push(sync: StoreSync, value: float) -> None:
    sync.parameters.gradient.fill_(value)
    sync.step(lr=0.0)


def fork(learner: Callable[[], None]) -> int:
    """The pid of a process that ends after ``learner``, with status 0 unless it raises."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            learner()
            status = 0
        except Exception:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    return pid


def add(address: dict[str, Any], size: int, values: list[int], pushes: int) -> Any:
    """A learner for each of ``values`` pushes it ``pushes`` times; gives their statuses."""

    def learn(value: int) -> None:
        sync = connect(address, size)
        for _ in range(pushes):
            push(sync, value)

    pids = [fork(lambda value=value: learn(value)) for value in values]  # type: ignore[misc]
    return [os.waitpid(pid, 0)[1] for pid in pids]


def stop(address: dict[str, Any], size: int) -> Any:
    """A learner stops under its first lock; tells its pid, then waits until somebody ends it."""

    def learn() -> None:
        Chunk.flip = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)  # type: ignore[assignment]
        push(connect(address, size), 1)

    pid = fork(learn)
    os.waitpid(pid, os.WUNTRACED)
    print(pid, flush=True)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def stress(address: dict[str, Any], size: int, learners: int, kills: int, self_kills: float) -> Any:
    """Learners push ones. They kill themselves between writing a slot and its flip, with
    probability ``self_kills``; at 0 one is killed from outside every now and then. Each that died
    is replaced until ``kills`` have. Gives how often each chunk was flipped, as counted by the
    learners, and how many died."""
    done = np.frombuffer(mmap.mmap(-1, 8 * (learners * MAX_CHUNKS + 1)), np.int64)
    is_over, done = done[:1], done[1:].reshape(learners, MAX_CHUNKS)
    flip = Chunk.flip

    def learn(slot: int) -> None:
        rng = random.Random(os.getpid())

        def flip_or_die(chunk: Chunk, num_updates: int) -> None:
            if rng.random() < self_kills and not is_over:
                os.kill(os.getpid(), signal.SIGKILL)
            flip(chunk, num_updates)
            done[slot, chunk.index] += 1

        Chunk.flip = flip_or_die  # type: ignore[method-assign]
        sync = connect(address, size)
        while not is_over:
            push(sync, 1)

    running = {fork(lambda slot=slot: learn(slot)): slot for slot in range(learners)}  # type: ignore[misc]
    killed, signals, failures = 0, 0, 0
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            slot = running.pop(pid)
            signals += os.WIFSIGNALED(status)
            failures += status not in (0, signal.SIGKILL)
            is_over[0] = signals >= kills
            if not is_over:
                running[fork(lambda slot=slot: learn(slot))] = slot  # type: ignore[misc]
            continue
        if not self_kills and not is_over:
            os.kill(random.choice(list(running)), signal.SIGKILL)
            killed += 1
        time.sleep(random.uniform(0.002, 0.02))
    flips = done.sum(0).tolist()
    return {"flips": flips, "killed": killed, "died": signals, "failures": failures}


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = json.loads(sys.argv[1])
    task = {"add": add, "stop": stop, "stress": stress}[arguments.pop("task")]
    print(json.dumps(task(**arguments)))
