"""Records in the store: JSON whose values keep their types, and signatures that nobody forges."""

import hashlib
import hmac
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.distributed import HashStore

from accel_rl.parallel.records import LAUNCHER, RecordError, Records

KEY = b"k" * 32


def write_and_read(value: Any) -> Any:
    records = Records(HashStore(), KEY)
    records.write("a", 0, value)
    return records.read("a", 0).value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**70),
        0.1,
        5e-324,
        1.0,
        math.inf,
        -math.inf,
        "\u00fc\udcff\n",
        [],
        {"a": [1.0]},
    ],
    ids=repr,
)
def test_values_keep_their_types(value: Any) -> None:
    found = write_and_read(value)
    assert found == value and type(found) is type(value)


def test_nan_and_numbers_of_numpy_are_numbers_of_python() -> None:
    found = write_and_read(
        [math.nan, np.float32(0.5), np.float64(0.1), np.int64(3), np.bool_(True)]
    )
    assert math.isnan(found[0])
    assert found[1:] == [0.5, 0.1, 3, True]
    assert [type(each) for each in found] == [float, float, float, int, bool]


def test_other_objects_are_not_written() -> None:
    with pytest.raises(TypeError, match="Path"):
        write_and_read(Path("a"))


def test_record_is_a_signature_a_number_and_json() -> None:
    store = HashStore()
    Records(store, KEY).write("post/1/7", 1, [2.5], 7)
    parts = [b"record", b"post/1/7", b"1", b"7", b"[2.5]"]
    message = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    signature = hmac.new(KEY, message, hashlib.sha256).hexdigest()
    assert store.get("post/1/7") == f"{signature} 7 [2.5]".encode()
    Records(store, None).write("post/1/7", 1, [2.5], 7)
    assert store.get("post/1/7") == b"unsigned 7 [2.5]"


def of_another(key: bytes = KEY, name: str = "post/1/7", sender: int = 1) -> bytes:
    store = HashStore()
    Records(store, key).write(name, sender, [2.5], 7)
    found: bytes = store.get(name)
    return found


@pytest.mark.parametrize(
    "forged",
    [
        of_another(key=b"l" * 32),
        of_another(name="post/1/6"),
        of_another(sender=2),
        of_another(sender=LAUNCHER),
        of_another().replace(b" 7 ", b" 8 "),
        of_another().replace(b"2.5", b"2.6"),
        of_another() + b" ",
        of_another().upper(),
        b"unsigned 7 [2.5]",
        b"",
        b"\xff" * 100,
        pickle.dumps([2.5]),
    ],
    ids=[
        *("key", "name", "sender", "launcher", "number", "value", "longer", "upper"),
        *("unsigned", "empty", "bytes", "pickle"),
    ],
)
def test_record_of_anything_else_is_refused_by_name(forged: bytes) -> None:
    store = HashStore()
    store.set("post/1/7", of_another())
    records = Records(store, KEY)
    assert records.read("post/1/7", 1).value == [2.5]
    store.set("post/1/7", forged)
    with pytest.raises(RecordError, match=r"record post/1/7 .* learner 1"):
        records.read("post/1/7", 1)


def test_record_that_is_older_than_the_last_one_is_refused() -> None:
    store = HashStore()
    records = Records(store, KEY)
    records.write("a", 1, None, 7)
    assert records.read("a", 1, 7).number == 7
    with pytest.raises(RecordError, match=r"record a .*older"):
        records.read("a", 1, 8)


@pytest.mark.parametrize(
    "text",
    [
        *(of_another(), b"", b"unsigned", b"unsigned 7", b"unsigned x [2.5]", b"unsigned 7 [2.5"),
        *(b"unsigned 7 " + b"[" * 100_000, b"unsigned 7 \xff", b"unsigned 7 " + b"1" * 5000),
    ],
    ids=["signed", "empty", "word", "no-value", "no-number", "cut", "deep", "bytes", "long"],
)
def test_malformed_record_is_refused_where_nothing_is_signed(text: bytes) -> None:
    store = HashStore()
    store.set("a", text)
    with pytest.raises(RecordError, match="record a "):
        Records(store, None).read("a", 1)


@pytest.mark.parametrize(
    "value", [None, 3, [1], [1, 2, 3], [1, 2.0], [1, True], {"1": 2}], ids=repr
)
def test_integers_of_a_record_are_looked_at(value: Any) -> None:
    records = Records(HashStore(), KEY)
    records.write("a", 1, [1, 2])
    assert records.read("a", 1).integers(2) == [1, 2]
    records.write("a", 1, value)
    with pytest.raises(RecordError, match=r"record a .*2 integers"):
        records.read("a", 1).integers(2)
