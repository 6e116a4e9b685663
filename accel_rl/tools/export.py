"""A saved run as files for other programs: ONNX, safetensors, and a description of both.

The graph computes what `load_policy` with ``greedy=True`` computes, normalisation of observations
and bounds of actions included, for any number of observations ``N``.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl import __version__
from accel_rl.agents.graph import PolicyGraph
from accel_rl.envs import make_env_factory
from accel_rl.envs.make import probe_observations
from accel_rl.runs.files import write_whole
from accel_rl.spaces import tensor_views
from accel_rl.system.extras import missing_package
from accel_rl.system.functions import first_line
from accel_rl.tools.output import check_folder
from accel_rl.tools.policy import PolicyOptions, open_run
from accel_rl.tools.weights import pack_weights

TOLERANCE = 1e-4
"""relative and absolute, between outputs of the graph and the policy"""
ONNX_FILE, WEIGHTS_FILE, DESCRIPTION_FILE = "policy.onnx", "policy.safetensors", "export.json"


@dataclass(frozen=True, kw_only=True)
class ExportOptions(PolicyOptions):
    """Options of `export_run` and of ``accel_rl export``."""

    out: str | None = None
    """directory for the files, which is made if it does not exist; none: export in the run
    directory"""


def export_run(run_dir: str | Path, options: ExportOptions) -> list[Path]:
    """Write ONNX, weights and their description; return the paths of the files.

    The graph is run on observations of the environment and compared with the policy before
    anything is written.
    """
    run_dir = Path(run_dir)
    for name in ("onnx", "onnxscript", "onnxruntime", "safetensors"):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise ValueError(missing_package("export", "export", error)) from error
    run = open_run(run_dir, options.checkpoint, greedy=True, trust=options.trust)
    config, spec, agent = run.config, run.spec, run.agent
    folder = Path(options.out) if options.out else run_dir / "export"
    paths = [folder / name for name in (ONNX_FILE, WEIGHTS_FILE, DESCRIPTION_FILE)]
    check_folder(folder, paths, overwrite=options.overwrite)
    graph = PolicyGraph(agent, spec.observation, spec.action)
    factory = make_env_factory(config.env, config.atari, config.info_keys)
    observations = probe_observations(factory)
    examples = graph.examples(tensor_views(spec.observation, observations))
    onnx = _to_onnx(graph, examples, f"model={config.model}")
    description = {
        "env": config.env,
        "algo": config.algo,
        "checkpoint": run.checkpoint.name,
        "inputs": [port.describe() for port in graph.inputs],
        "outputs": [port.describe() for port in graph.outputs],
        "greedy": graph.greedy,
        "evaluations": graph.evaluations,
        "memory": {"state": "next_state"} if graph.remembers else None,
        "onnx": ONNX_FILE,
        "weights": WEIGHTS_FILE,
        "accel_rl_version": __version__,
    }
    folder.mkdir(exist_ok=True)
    text = json.dumps(description, indent=2) + "\n"
    for path, data in zip(paths, (onnx, pack_weights(agent), text.encode()), strict=True):
        write_whole(path, data)
    return paths


def _to_onnx(graph: PolicyGraph, examples: list[Tensor], which: str) -> bytes:
    """Return the graph in ONNX, compared with ``graph`` on other numbers of observations."""
    names = [port.name for port in graph.inputs], [port.name for port in graph.outputs]
    with torch.no_grad(), _quietly():
        try:
            program = torch.onnx.export(
                graph.eval(),
                (examples,),
                dynamo=True,
                verbose=False,
                input_names=names[0],
                output_names=names[1],
                dynamic_shapes=([{0: "N"}] * len(examples),),
            )
        except Exception as error:
            raise ValueError(
                f"{which}: torch cannot export this network to ONNX: {first_line(_root(error))}; "
                "its forward may not branch on values or use NumPy, and takes shape[0] for len()"
            ) from error
        assert program is not None
        data: bytes = program.model_proto.SerializeToString()
        for n in (1, 3):
            given = [torch.cat((each, each))[:n] for each in examples]
            found = run_graph(data, names[0], given)
            for name, one, other in zip(names[1], found, graph(given), strict=True):
                if not np.allclose(one, other.numpy(), rtol=TOLERANCE, atol=TOLERANCE):
                    raise ValueError(
                        f"{which}: the exported graph computes another {name} than the policy, so "
                        "nothing was written; does forward branch on values, or depend on the size "
                        "of a batch?"
                    )
    return data


def _root(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else _root(error.__cause__)


def run_graph(data: bytes, names: Sequence[str], inputs: Sequence[Tensor]) -> list[Any]:
    """Return the outputs of an ONNX file's content for ``inputs``."""
    runtime = import_module("onnxruntime")
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    arrays = (each.numpy() for each in inputs)
    outputs: list[Any] = session.run(None, dict(zip(names, arrays, strict=True)))
    return outputs


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep the exporter from printing, logging and warning."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
