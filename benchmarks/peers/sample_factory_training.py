"""Sample Factory's APPO training on an Atari game, asynchronously, in any interpreter that has it.

Environments, network (of Mnih et al. 2015, images of 84 x 84) and algorithm are those of its own
Atari example; the batch is ours. Simulators, inference and learner are processes of their own,
which rest between measurements. Steps are those that were learned from.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from typing import Any

import ale_py  # noqa: F401  # registers the games, also in the processes that it spawns

from benchmarks.harness.children import read_spec, serve_within, versions

FRAME_SKIP = 4
PACKAGES = ("sample-factory", "torch", "gymnasium", "ale-py")
FOREVER = 10**12
MALLOC = {  # as `accel_rl.training.torch_setup`, in the form that processes inherit
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}


def main() -> None:
    """Runs its trainer, measured after every batch that was learned from."""
    spec = read_spec()
    if spec["malloc"] == "tuned":
        os.environ |= MALLOC
    import psutil
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.train import make_runner
    from sf_examples.atari.train_atari import parse_atari_args, register_atari_components

    def signal_all(number: signal.Signals) -> None:
        for process in psutil.Process().children(recursive=True):
            # Not torch's manager of shared memory: it has a process group of its own, in which
            # nobody would end it, and ends with those that it serves, unless it is stopped.
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getpgid(process.pid) == os.getpgrp():
                    process.send_signal(number)

    with tempfile.TemporaryDirectory() as folder:
        arguments = make_arguments(spec)
        register_atari_components()
        config = parse_atari_args([*arguments, f"--train_dir={folder}"])
        _, runner = make_runner(config)
        said = {"arguments": arguments, "versions": versions(*PACKAGES)}
        reached = serve_within(
            said, lambda: signal_all(signal.SIGSTOP), lambda: signal_all(signal.SIGCONT)
        )

        class Observer(AlgoObserver):  # type: ignore[misc]
            """Told after every batch."""

            def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
                del training_iteration_since_resume
                if frames := sum(runner.env_steps.values()):
                    reached(frames // FRAME_SKIP)

        runner.register_observer(Observer())
        runner.init()
        status = runner.run()
    raise RuntimeError(f"Sample Factory has ended with {status}")


def make_arguments(spec: dict[str, Any]) -> list[str]:
    """Its command line. One worker a CPU, each with two groups that are served in turn."""
    work, num_workers = spec["work"], len(spec["cpus"])
    options = {
        "algo": "APPO",
        "env": f"atari_{spec['game'].replace('_', '')}",
        "experiment": "speed",
        "device": "gpu" if spec["device"] == "cuda" else "cpu",
        "seed": spec["seed"],
        "num_workers": num_workers,
        "num_envs_per_worker": max(2, work["num_envs"] // num_workers),
        "worker_num_splits": 2,
        "rollout": work["horizon"],
        "batch_size": work["num_envs"] * work["horizon"] // work["num_minibatches"],
        "num_batches_per_epoch": work["num_minibatches"],
        "num_epochs": work["num_epochs"],
        "async_rl": True,
        "serial_mode": False,
        "set_workers_cpu_affinity": num_workers == os.cpu_count(),
        "train_for_env_steps": FOREVER,
        "train_for_seconds": FOREVER,
        "heartbeat_interval": 10**6,  # it rests between measurements
        "heartbeat_reporting_interval": 10**6,
        "save_every_sec": 10**6,
        "decorrelate_experience_max_seconds": 0,
    }
    return [f"--{name}={value}" for name, value in options.items()]


if __name__ == "__main__":
    main()
