"""What goes wrong while sampling."""

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


def not_running(ended_by: str) -> SamplerError:
    """That of a sampler asked to collect; ``ended_by``: the error that ended an earlier one."""
    if not ended_by:
        return SamplerError("this sampler is not running; call start() or use it in `with`")
    return SamplerError(
        f"this sampler was closed by an error in an earlier collect ({ended_by}); make another one"
    )


@contextmanager
def one_at_a_time(collecting: Lock) -> Iterator[None]:
    """Raises SamplerError where a sampler is collecting already."""
    is_first = collecting.acquire(blocking=False)
    try:
        if not is_first:
            raise SamplerError(
                "collect was called while this sampler is in another collect, whose policy or "
                "another thread has called it; use another sampler there"
            )
        yield
    finally:
        if is_first:
            collecting.release()


def name_error(error: BaseException) -> str:
    """Its kind and the first line of what it says."""
    return f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
