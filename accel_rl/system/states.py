"""States of samplers and environments as bytes, in which no code can hide.

An archive of NumPy's (``.npz``) with one array for each array in the state, and the rest as JSON:
to read one executes nothing, unlike a pickle.
"""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What JSON does not have is an object of one entry: {_ARRAY: 3} stands for array number 3.
_ARRAY, _BYTES, _SCALAR = "$array", "$bytes", "$scalar"
_TUPLE, _DICT = "$tuple", "$dict"  # of values; of pairs, where keys are not plain text


def encode_state(state: Any) -> bytes:
    """Return ``state`` as bytes, from which `decode_state` makes an equal one of the same types.

    Args:
        state: None, bool, int, float, str, bytes, NumPy arrays and scalars, and lists, tuples and
            dicts of these. Subclasses, such as enums and named tuples, are refused, because they
            would come back as something else.
    """
    arrays: list[NDArray[Any]] = []

    def keep(kind: str, array: NDArray[Any]) -> dict[str, int]:
        arrays.append(array)
        return {kind: len(arrays) - 1}

    def plain(value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is list:
            return [plain(each) for each in value]
        if kind is tuple:
            return {_TUPLE: [plain(each) for each in value]}
        if kind is dict:
            if all(type(key) is str and not key.startswith("$") for key in value):
                return {key: plain(each) for key, each in value.items()}
            return {_DICT: [[plain(key), plain(each)] for key, each in value.items()]}
        if kind is bytes:
            return keep(_BYTES, np.frombuffer(value, np.uint8))
        if kind is np.ndarray and not value.dtype.hasobject:
            return keep(_ARRAY, value)
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return keep(_SCALAR, np.asarray(value))
        raise TypeError(
            f"a {kind.__name__} cannot be saved; a state is made of None, bool, int, float, str, "
            f"bytes, arrays, and lists, tuples and dicts of these"
        )

    text = json.dumps(plain(state))
    buffer = io.BytesIO()
    named: dict[str, Any] = {str(number): array for number, array in enumerate(arrays)}
    np.savez_compressed(buffer, text=np.frombuffer(text.encode(), np.uint8), **named)
    return buffer.getvalue()


def check_takes(set_state: Callable[..., object], *arguments: object) -> None:
    """Raise TypeError if ``set_state`` has another use: it does not take these arguments."""
    try:
        inspect.signature(set_state).bind(*arguments)
    except ValueError:  # of functions in C nothing is known
        return
    except TypeError as error:
        raise TypeError(f"set_state does not take what get_state returns: {error}") from None


def decode_state(data: bytes) -> Any:
    """Return the state that `encode_state` was called with."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            restorers: dict[str, Callable[[Any], object]] = {
                _ARRAY: lambda number: archive[str(number)],
                _BYTES: lambda number: archive[str(number)].tobytes(),
                _SCALAR: lambda number: archive[str(number)][()],
                _TUPLE: tuple,
                _DICT: dict,
            }

            def restore(value: dict[str, Any]) -> object:
                for kind, content in value.items() if len(value) == 1 else ():
                    if kind in restorers:
                        return restorers[kind](content)
                return value

            return json.loads(archive["text"].tobytes(), object_hook=restore)
    except Exception as error:  # of zip files, NumPy's format, JSON: there is no end of them
        raise ValueError(f"not a saved state: {error}") from error
