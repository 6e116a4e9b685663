"""One of our learners in training, put together from options as on its command line.

A step includes what the training loop does but writing metrics.
"""

from __future__ import annotations

import os
from typing import Any

from benchmarks.harness.children import read_spec, serve, versions


def main() -> None:
    """Measures the run that the specification's ``options``, a list of ``key=value``, stand for."""
    spec = read_spec()
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as accel_rl.__main__, before torch is loaded
    from accel_rl.cli.parse import parse_arguments
    from accel_rl.training.build import build
    from accel_rl.training.torch_setup import learning_threads, sampling_threads

    with sampling_threads():
        config = parse_arguments(spec["options"])
        parts: Any = build(config)
        parts.sampler.start()
        overlapped = parts.overlapped
        server, learner = overlapped or parts.server, overlapped or parts.learner
        if overlapped is not None:
            overlapped.begin(lambda steps: True)
        steps = 0

        def advance() -> int:
            nonlocal steps
            if overlapped is None:
                parts.sampler.collect(parts.server)
            else:
                overlapped.collect()
            steps += config.steps_per_iteration
            with learning_threads(parts.num_threads):
                learner.update(server.finish(), 0.0, steps)
            parts.sampler.take_episodes()
            return config.steps_per_iteration

        while not parts.sync.num_updates:  # what is measured is to learn
            advance()
        said = {"options": spec["options"], "plan": parts.describe()}
        serve(advance, said | {"versions": versions("torch", "ale-py")})


if __name__ == "__main__":
    main()
