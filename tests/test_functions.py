"""Functions of the user's own, by name."""

import json

import pytest

from accel_rl.functions import find_function


@pytest.mark.parametrize(("path", "file"), [("json:Net", json.__file__), ("sys:Net", "built in")])
def test_module_without_the_function_is_told_with_its_file(path: str, file: str) -> None:
    name = path.partition(":")[0]
    with pytest.raises(ValueError) as info:
        find_function("model", path)
    assert str(info.value) == f"model={path}: the module {name} ({file}) has no function Net"
