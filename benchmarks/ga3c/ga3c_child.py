"""GA3C in training, or what its predictors and trainers compute, each alone; a child of `ga3c`.

``what``: ``train``; or ``parts``, whose numbers are ``inference_N``, seconds of the actions of N
environments, and ``update_N``, seconds of an update with N samples, in one thread each.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from benchmarks.harness.children import read_spec, serve

PART_SECONDS = 0.2  # for each size of batch, in each round


def main() -> None:
    """Prepares, and serves."""
    spec = read_spec()
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as accel_rl.__main__, before torch is loaded
    from accel_rl.training.torch_setup import sampling_threads

    with sampling_threads():
        if spec["what"] == "parts":
            _serve_parts(spec)
        else:
            _serve_training(spec["options"])


def _serve_training(options: list[str]) -> None:
    """A step is a prediction; the numbers are sums of the measurement."""
    from benchmarks.ga3c.ga3c_engine import Engine, Reading

    with Engine(options) as engine:
        seen, done = 0.0, Reading()

        def advance() -> int:
            nonlocal seen
            if not engine.is_running:
                engine.resume()
                seen = 0.0
            before, seen = seen, engine.look()
            return int(seen - before)

        def goes_on(has_time: bool) -> bool:
            nonlocal done
            if not has_time:
                done = engine.pause()
            return has_time

        def take_numbers() -> dict[str, float]:
            return done._asdict() | engine.gpu.take()

        settings = {"options": options, "plan": engine.plan, "threads": engine.counts}
        serve(advance, settings, take_numbers, goes_on)


def _serve_parts(spec: dict[str, Any]) -> None:
    import torch

    from accel_rl.agents import PolicyAgent, sample_categorical
    from accel_rl.cli.parse import parse_arguments
    from accel_rl.ga3c.learner import GA3C, Samples
    from accel_rl.training.build import build
    from benchmarks.scaling.speed_parts import median_seconds

    parts = build(parse_arguments(spec["options"]))
    agent, learner, env, device = parts.agent, parts.learner, parts.sampler.env_spec, parts.device
    assert isinstance(agent, PolicyAgent) and isinstance(learner, GA3C)
    most = max(*spec["prediction_batches"], *spec["training_batches"])
    shape, dtype = (most, *env.observation_shape), getattr(torch, env.observation_dtype.name)
    images = torch.randint(0, 2, shape).to(dtype)  # on the host, as simulators leave them
    uniform, ones = torch.rand(most, dtype=torch.float64), torch.ones(most)
    action = torch.randint(env.num_actions, (most,))

    @torch.inference_mode()
    def act(N: int) -> None:
        output = agent.evaluate(images[:N].to(device))
        sample_categorical(output.logits, uniform[:N].to(device)).cpu()
        output.value.cpu()

    def update(N: int) -> None:
        batch = Samples(*(each[:N].to(device) for each in (images, action, ones)))
        learner.update(batch, 0.0)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    numbers: dict[str, float] = {}

    def advance() -> int:
        for N in spec["prediction_batches"]:
            numbers[f"inference_{N}"] = median_seconds(partial(act, N), PART_SECONDS)
        for N in spec["training_batches"]:
            numbers[f"update_{N}"] = median_seconds(partial(update, N), PART_SECONDS)
        return 1

    serve(advance, {"options": spec["options"]}, lambda: numbers)


if __name__ == "__main__":
    main()
