"""What goes wrong while sampling."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class SamplerError(RuntimeError):
    """A sampler cannot go on, or is used out of turn; the message says why and what to do."""


class WorkerError(SamplerError):
    """A simulator process died, hung or raised; the message names it and its environments.

    ``worker_traceback`` is the traceback inside the worker, empty where there was none; Python
    prints it below the error's own.
    """

    def __init__(self, message: str, worker_traceback: str = "") -> None:
        super().__init__(message)
        self.worker_traceback = worker_traceback
        if worker_traceback:
            self.add_note(f"In the worker:\n{worker_traceback.rstrip()}")


def was_closed() -> SamplerError:
    """The error of a sampler that is used after `close`."""
    return SamplerError("this sampler was closed; make another one")


def of_another_process(pid: int) -> SamplerError:
    """The error of what process ``pid`` made, of which this process is a fork."""
    return SamplerError(
        f"this sampler is that of process {pid}, of which this one, {os.getpid()}, is a fork; make "
        f"another one here"
    )


def not_running(ended_by: str, is_closed: bool) -> SamplerError:
    """The error of a sampler that is to collect and does not run.

    ``ended_by``: the error in an earlier `collect` that closed it, if one did.
    """
    if ended_by:
        return SamplerError(
            f"this sampler was closed by an error in an earlier collect ({ended_by}); make another "
            f"one"
        )
    if is_closed:
        return was_closed()
    return SamplerError("this sampler is not running; call start() or use it in `with`")


@contextmanager
def one_at_a_time(collecting: Lock, called: str) -> Iterator[None]:
    """Raises SamplerError if a sampler is in a ``collect`` or ``get_state`` already.

    ``called``: what is to run within.
    """
    is_first = collecting.acquire(blocking=False)
    try:
        if not is_first:
            raise SamplerError(
                f"{called} was called while this sampler is in another collect or get_state, by "
                f"its policy or in another thread; use another sampler there"
            )
        yield
    finally:
        if is_first:
            collecting.release()


def name_error(error: BaseException) -> str:
    """Its kind and the first line of what it says."""
    return f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
