"""Options in a YAML file: what ``config=FILE`` on the command line names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from accel_rl.options import format_value
from accel_rl.runs.yaml_file import read_yaml


def read_option_file(path: Path, *, trust: bool) -> dict[str, Any]:
    """The options of all groups in the YAML file ``path``, by dotted key.

    ``run_dir`` is left out: it is one run's alone, and a run's own ``config.yaml`` names it.

    Raises:
        UntrustedError: it names code that may not run without ``trust``.
        ValueError: it cannot be read, holds no options, or says ``resume`` or ``trust``.
    """
    if path.is_dir():
        raise ValueError(f"config={path} is a directory; name a file, as in {path}/config.yaml")
    tree = read_yaml(path, trust=trust)
    if not isinstance(tree, DictConfig) or not tree:
        raise ValueError(
            f"config={path} holds no options; write them as `key: value`, groups indented, as in "
            "the config.yaml of a run"
        )
    container = OmegaConf.to_container(tree, resolve=False)
    assert isinstance(container, dict)
    options: dict[str, Any] = {}
    for key, value in _flat(container, ""):
        if key in options:
            raise ValueError(f"config={path}: {key} is given twice")
        options[key] = value
    if options.pop("resume", None) is not None:
        raise ValueError(
            f"config={path} says resume, which goes on with a run in its own options; "
            "use resume=RUN_DIR on the command line, without config"
        )
    if options.pop("trust", False) is not False:
        raise ValueError(
            f"config={path} says trust, which is for the command line alone; leave it out there"
        )
    options.pop("run_dir", None)
    return options


def exact_text(value: Any) -> str:
    """``value`` as on the command line, with all its digits."""
    return repr(value) if isinstance(value, float) else format_value(value)


def _flat(tree: dict[Any, Any], group: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{group}{name}.")
        else:
            yield f"{group}{name}", tuple(value) if isinstance(value, list) else value
