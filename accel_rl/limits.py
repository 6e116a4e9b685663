"""The message where the system refuses to start one more process or thread."""

from __future__ import annotations

NO_MORE_PROCESSES = (
    "the system allows no more processes or threads; raise its limit (ulimit -u, or the pids limit "
    "of the container or job), or use fewer learners, fewer num_workers, or serial=true"
)


def lacks_processes(error: BaseException) -> bool:
    """Return whether ``error`` means that no more processes or threads are allowed."""
    said = str(error)
    return isinstance(error, OSError | RuntimeError) and (
        "temporarily unavailable" in said or "can't start new thread" in said
    )
