"""A simulator process: ``python -m accel_rl.samplers.worker``, started by `WorkerPool`.

It steps its environments straight into shared memory when its groups are released, and never loads
torch. Its life hangs on the life pipe: as soon as the writer is gone, the kernel kills the process
group of the worker, which is the worker and the programs that its environments have started. It
also kills a worker that is stuck in C with the interpreter locked, and one that was stopped.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import pickle
import signal
import struct
import sys
import traceback
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

from accel_rl.envs.base import EnvFactory, close_envs
from accel_rl.envs.reach import Answer
from accel_rl.samplers.base import SamplerError
from accel_rl.samplers.block import Block, check_distinct, environment_seed
from accel_rl.samplers.generators import Turns
from accel_rl.samplers.make_block import make_block, make_envs
from accel_rl.samplers.orders import (
    CALL,
    CLOSE,
    GET_STATE,
    STEP,
    WAIT_FOR_RESET,
    SharedArrays,
    SpinningWaiter,
    Waiter,
    count_down,
)
from accel_rl.samplers.shared import (
    GRACE_SECONDS,
    TELL_PLACE,
    Descriptors,
    Setup,
    dumps,
    map_memory,
)
from accel_rl.system.functions import FAILURES, place_of
from accel_rl.system.processes import die_with_server, forget_package_path


class CloseError(SamplerError):
    """An environment failed in its ``close``, when nothing else was wrong."""


Blocks = list[tuple[int, Block]]
"""a worker's environments of each of its groups, by group"""


def main() -> None:
    descriptors = Descriptors(*map(int, sys.argv[1:]))
    os.write(descriptors.report, b"\n")  # so that the server knows that this program has begun
    leave_signals_to_server()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what the server blocks is blocked here, too
    die_with_server(descriptors.life, -os.getpgrp())
    # What crashes leaves where it was, and so does what hangs when the server asks.
    faulthandler.enable(descriptors.report, all_threads=False)
    faulthandler.register(TELL_PLACE, descriptors.report, all_threads=False)
    blocks: Blocks = []
    try:
        setup = read_setup(descriptors.setup)
        forget_package_path()
        run(descriptors, setup, blocks)
    except BaseException as error:
        # 128 KiB are read, and JSON takes up to six bytes for a character.
        # Whoever raises what is no `FAILURES` has passed all that names environments and places.
        place = "" if isinstance(error, FAILURES) else place_of(error)
        report = {"message": f"{str(error)[:2_000]}{place}", "kind": type(error).__name__}
        report["traceback"] = traceback.format_exc()[-8_000:]
        with suppress(OSError):  # an environment has closed what is not its own
            os.write(descriptors.report, json.dumps(report).encode())
        end_after_failure(blocks)


def end_after_failure(blocks: Blocks) -> None:
    """Close the environments and write out what they have printed, but end soon, come what may."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel ends also what is stuck in C
    signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
    flush()
    with suppress(BaseException):
        close_envs([env for _, block in blocks for env in block.envs])
    flush()
    with suppress(BaseException):  # also those that have left the process group
        import psutil  # here, since workers start sooner without

        for program in psutil.Process().children(recursive=True):
            program.kill()
    os._exit(1)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()


def leave_signals_to_server() -> None:
    """Ctrl-C, SIGTERM and SIGHUP do nothing here; the last two do in processes started here.

    Batch systems and terminals send them to every process of a run, and the server still wants to
    save what state the simulators are in. A signal that is ignored remains so in a program that an
    environment starts, which could then not be terminated; one with a handler does not. Ctrl-C
    stays ignored there, too, as in a shell's background jobs: it is not meant for them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A worker is in the background of a terminal, which may be set to stop such that write to it.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    # A server that ignores it would leave that to environments, which wait for their programs.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)  # `os.eventfd_read` would raise InterruptedError
        os.register_at_fork(after_in_child=partial(signal.signal, number, signal.SIG_DFL))


def read_setup(descriptor: int) -> Setup:
    """The `Setup` left by the server, after what modules that its pickle needs may look at."""
    with os.fdopen(descriptor, "rb") as file:
        (length,) = struct.unpack("<q", file.read(8))
        sys.path[:], sys.argv[:] = json.loads(file.read(length))
        setup = pickle.loads(file.read())
    assert isinstance(setup, Setup)
    return setup


def read_factory(descriptor: int) -> EnvFactory:
    """The factory left by the server, whose pickle is not copied."""
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as pickled:
        factory: EnvFactory = pickle.loads(pickled)
    os.close(descriptor)
    return factory


def run(descriptors: Descriptors, setup: Setup, blocks: Blocks) -> None:
    """Make and reset the environments, ``blocks``, then carry out orders until told to close."""
    if setup.cpus:
        os.sched_setaffinity(0, setup.cpus)
    os.nice(setup.niceness)
    worker = setup.worker
    arrays = map_memory(setup.spec, descriptors.memory)
    turns = Turns()
    _make_blocks(setup, descriptors, arrays, blocks, turns)
    arrays.is_awake[worker] = setup.awake_seconds is not None
    arrays.has_started[worker] = True
    os.eventfd_write(descriptors.started, 1)

    # Single numbers are read and written in views several times as quickly as in arrays.
    command, row, sequence = arrays.command.data, arrays.row.data, arrays.sequence.data
    own = (arrays.done[worker], arrays.busy_seconds, arrays.longest_seconds, arrays.done_at)
    views: list[Any] = [array.data for array in own]
    done, busy_seconds, longest_seconds, done_at = views
    block_of = dict(blocks)
    waited = arrays, worker, list(block_of), descriptors.wake
    awake = setup.awake_seconds
    waiter = Waiter(*waited) if awake is None else SpinningWaiter(*waited, awake)
    while True:
        for group in waiter.wait():
            block = block_of[group]
            order = sequence[group]
            if command[group] == CLOSE:
                _close(blocks)
                return
            began = perf_counter()
            turns.begin(group)
            if command[group] == STEP:
                block.step(row[group])
            elif command[group] in (GET_STATE, CALL):
                _leave(block, command[group], descriptors.states)
            else:
                block.reset()
            ended = perf_counter()
            busy_seconds[worker] += ended - began
            if ended - began > longest_seconds[worker]:
                longest_seconds[worker] = ended - began
            done_at[worker] = ended
            done[group] = order
            count_down(setup.countdown[group], setup.ready[group])


def _leave(block: Block, command: int, descriptor: int) -> None:
    """Append the states of environments, or the answers to a request, to the worker's memory."""
    if command == GET_STATE:
        left = pickle.dumps(block.get_states())
    else:
        request = os.pread(descriptor, os.fstat(descriptor).st_size, 0)  # and what follows it
        left = _packed(block.call(pickle.loads(request)))
    _append(descriptor, left)


def _append(descriptor: int, data: bytes) -> None:
    with open(descriptor, "ab", closefd=False) as file:
        file.write(data)


def _packed(answers: dict[int, Answer]) -> bytes:
    """Pickle the answers, without values that cannot be."""
    kept = {}
    for index, answer in answers.items():
        try:
            dumps(answer)
            kept[index] = answer
        except Exception as error:  # whatever __reduce__ raises
            kind = type(answer.value).__name__
            message = f"a {kind} cannot be sent to another process: {error}"
            kept[index] = Answer(None, "TypeError", message)
    return dumps(kept)


def _close(blocks: Blocks) -> None:
    """Close all environments, once: a failure of that must not lead to it again."""
    last = [env for _, block in blocks for env in block.envs]
    blocks.clear()
    try:
        close_envs(last)
    except FAILURES as error:
        raise CloseError(str(error)) from error


def _make_blocks(
    setup: Setup, descriptors: Descriptors, arrays: SharedArrays, blocks: Blocks, turns: Turns
) -> None:
    """Make, start and append the worker's environments of each of its groups."""
    factory = read_factory(descriptors.factory)

    def count(num_steps: int) -> None:
        arrays.first_steps[setup.worker] += num_steps

    for _, group, columns in setup.spec.slices:
        place = slice(columns.start, columns.stop)
        seed = environment_seed(setup.seed, columns.start, setup.restart)
        block = make_block(
            make_envs(factory, place, setup.spec.rollout, seed),
            place,
            arrays.block,
            setup.config,
            setup.seed,
            setup.restart,
            setup.autoreset,
        )
        blocks.append((group, block))
        block.count = count
        check_distinct([each.envs for _, each in blocks])
        if setup.start_rows[group] == WAIT_FOR_RESET:
            block.wait_for_reset()
        else:
            block.start(setup.start_rows[group], setup.states)
        turns.add(group)
        if block.refused:
            _append(descriptors.states, pickle.dumps(block.refused))


if __name__ == "__main__":
    main()
