"""States of samplers and environments as bytes, in which no code can hide.

An archive of NumPy's (``.npz``) with one array for each array in the state, and the rest as JSON:
to read one executes nothing, unlike a pickle.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ARRAY, _BYTES = "$array", "$bytes"  # {_ARRAY: 3} stands for array number 3


def encode_state(state: Any) -> bytes:
    """``state``: None, bool, int, float, str, bytes, arrays, lists and dicts (keys: str) of these.

    Tuples come back as lists.

    Raises:
        TypeError: there is something else in it.
    """
    arrays: list[NDArray[Any]] = []

    def default(value: object) -> object:
        if isinstance(value, bytes):
            arrays.append(np.frombuffer(value, np.uint8))
            return {_BYTES: len(arrays) - 1}
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            arrays.append(value)
            return {_ARRAY: len(arrays) - 1}
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(
            f"a {type(value).__name__} cannot be saved; a state is made of None, bool, int, float, "
            f"str, bytes, arrays, and lists and dicts of these"
        )

    text = json.dumps(state, default=default)
    buffer = io.BytesIO()
    named: dict[str, Any] = {str(number): array for number, array in enumerate(arrays)}
    np.savez_compressed(buffer, text=np.frombuffer(text.encode(), np.uint8), **named)
    return buffer.getvalue()


def decode_state(data: bytes) -> Any:
    """What `encode_state` was given.

    Raises:
        ValueError: ``data`` is something else.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:

            def restore(value: dict[str, Any]) -> object:
                if _ARRAY in value:
                    return archive[str(value[_ARRAY])]
                if _BYTES in value:
                    return archive[str(value[_BYTES])].tobytes()
                return value

            return json.loads(archive["text"].tobytes(), object_hook=restore)
    except Exception as error:  # of zip files, NumPy's format, JSON: there is no end of them
        raise ValueError(f"not a saved state: {error}") from error
