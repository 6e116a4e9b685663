"""What goes wrong while sampling."""


class SamplerError(RuntimeError):
    """A sampler cannot go on, or is used out of turn; the message says why and what to do."""


class WorkerError(SamplerError):
    """A simulator process died, hung or raised; the message names it and its environments.

    ``worker_traceback`` is the traceback inside the worker, empty where there was none.
    """

    def __init__(self, message: str, worker_traceback: str = "") -> None:
        super().__init__(message)
        self.worker_traceback = worker_traceback
