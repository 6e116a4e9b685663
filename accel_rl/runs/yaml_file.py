"""The YAML files of runs and sweeps: signed when they are written, and read without resolving
anything.

The last line of a file that a run or sweep of this user wrote is a comment with a signature of all
lines before it (see `accel_rl.system.signing`). Copies of the file keep it, and editing the file
breaks it.
Code that such a file names runs only if the signature holds or the user says so: see `read_yaml`.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # of OmegaConf
from omegaconf import DictConfig, OmegaConf

from accel_rl.options import format_value
from accel_rl.runs.files import read_bytes, write_whole
from accel_rl.system.functions import first_line
from accel_rl.system.signing import UntrustedError, is_signed, sign, user_key

CODE_OPTIONS = ("algo", "env", "model", "tracker")
"""options that may name a module, whose code is then run"""
UNSIGNED = (
    "not signed, because there is no key: the state folder (XDG_STATE_HOME, else ~/.local/state) "
    "cannot be written, or accel_rl/key in it is not a regular file of yours that you alone can "
    "read (chmod 600); later commands ask for trust=true before they run code that the files name"
)
"""what runs and sweeps say where nothing can be signed"""
_SIGNATURE = b"# signature: "
_MOST_BYTES = 1 << 24
"""of a file; the longest sweep has a fifth of it"""


def write_yaml(path: Path, tree: object, *, signed: bool = True) -> None:
    """Write OmegaConf's ``tree`` to ``path``, ``signed`` if this user has a key."""
    data = OmegaConf.to_yaml(tree).encode()
    key = user_key() if signed else None
    if key is not None:
        data += b"%s%s\n" % (_SIGNATURE, sign(key, data).encode())
    write_whole(path, data)


def read_yaml(
    path: Path, *, trust: bool, imports: Collection[str] = CODE_OPTIONS, within: str | None = None
) -> Any:
    """Return OmegaConf's tree of what `write_yaml` or a person wrote to ``path``.

    This is where it is decided what code may run: code that a file names may if the file is signed
    with this user's key, or with ``trust``.

    Args:
        trust: whether code that it names may run in any case.
        imports: options whose code the caller is going to import.
        within: entry of the file that holds the options. None: they are the whole.

    Raises:
        UntrustedError: it names code that may not run.
        ValueError: the file cannot be read, it is no YAML, or a value in it stands for another one,
            such as a variable of the environment.
    """
    try:
        data = read_bytes(path, _MOST_BYTES)
        tree = OmegaConf.load(io.StringIO(_without_octal(data.decode())))
        plain = OmegaConf.to_container(tree, resolve=False)
    except Exception as error:  # the disk's, the decoder's, or one of the YAML reader's many
        reason = getattr(error, "strerror", None) or first_line(error)
        if mark := getattr(error, "problem_mark", None):
            reason = f"line {mark.line + 1}: {getattr(error, 'problem', reason)}"
        raise ValueError(f"{path} cannot be read: {reason}") from error
    for key, value in _leaves(plain, ""):
        if isinstance(value, str) and "${" in value:
            raise ValueError(
                f"{path} cannot be read: {key} is {value}, which stands for another value; write "
                f"that itself"
            )
    options = plain.get(within) if within and isinstance(plain, dict) else plain
    if not trust and isinstance(options, dict) and not _is_signed(data):
        code = code_in({str(key): value for key, value in options.items()})
        if named := " and ".join(f"{key}={code[key]}" for key in code if key in imports):
            raise UntrustedError(
                f"{path} names code to run, {named}, and is not signed with your key: somebody "
                f"else wrote it, or it was edited, or it comes from another machine or user. If "
                f"you trust that code, give trust=true"
            )
    return tree


def read_option_file(path: Path, *, trust: bool) -> dict[str, Any]:
    """Return the options in the file that ``config=FILE`` names, by dotted key.

    ``run_dir`` is left out: a run's own ``config.yaml`` names its own directory.
    """
    if os.path.isdir(path):  # which fails for no name
        raise ValueError(f"config={path} is a directory; name a file, as in {path}/config.yaml")
    tree = read_yaml(path, trust=trust)
    if not isinstance(tree, DictConfig) or not tree:
        raise ValueError(
            f"config={path} holds no options; write them as `key: value`, groups indented, as in "
            "the config.yaml of a run"
        )
    container: Any = OmegaConf.to_container(tree, resolve=False)
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
    """Return ``value`` as on the command line, with all its digits."""
    if isinstance(value, np.generic):
        value = value.item()
    return repr(value) if isinstance(value, float) else format_value(value)


def _flat(tree: dict[Any, Any], group: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{group}{name}.")
        else:
            yield f"{group}{name}", tuple(value) if isinstance(value, list) else value


def is_own(path: Path) -> bool:
    """Return whether the file at ``path`` can be read and is signed with this user's key."""
    try:
        return _is_signed(read_bytes(path, _MOST_BYTES))
    except (OSError, ValueError):
        return False


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, if it is there, refuses deep lists at once; over them Python takes a minute"""


def _without_octal(text: str) -> str:
    """Return ``text`` with 10 for 010, as on the command line: old YAML takes 010 for 8."""
    if not re.search(r"(?<![\w.])0[0-7]", text):
        return text
    for token in reversed(list(yaml.scan(text, _LOADER))):
        is_plain = isinstance(token, yaml.ScalarToken) and token.plain
        if is_plain and (number := re.fullmatch(r"([-+]?)0+([0-7]+)", token.value)):
            start, end = token.start_mark.index, token.end_mark.index
            text = text[:start] + "".join(number.groups()) + text[end:]
    return text


def code_in(options: Mapping[str, object]) -> dict[str, str]:
    """Return those of ``options`` that name modules, whose code a run imports."""
    named = {option: _text(options.get(option, "")) for option in CODE_OPTIONS}
    return {option: value for option, value in named.items() if ":" in value}


def _text(value: object) -> str:
    """Return an option's value as it is typed."""
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _is_signed(data: bytes) -> bool:
    key = user_key()
    body, mark, signature = data.rpartition(_SIGNATURE)
    if key is None or not mark:
        return False
    return is_signed(key, signature.decode(errors="replace").rstrip("\n"), body)


def _leaves(tree: object, key: str) -> Iterator[tuple[str, object]]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(tree, list):
        for value in tree:
            yield from _leaves(value, key)
    else:
        yield key, tree
