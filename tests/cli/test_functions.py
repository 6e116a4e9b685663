"""Functions of the user's own, by name."""

import json
import re
import sys
from collections.abc import Iterator

import pytest

from accel_rl.envs import make_env_factory
from accel_rl.system.functions import ExitError, find_function, place_of, refusing_exit

NO_SUCH_FUNCTION = {
    "json:Net": f"({json.__file__}) has no function Net; it has dump, dumps, ",
    "sys:Net": "(built in) has no function Net",
    "reach_env:mke": "has no function mke; it has Reach, make",
}


@pytest.mark.parametrize(("path", "said"), NO_SUCH_FUNCTION.items())
def test_module_without_the_function_is_told_with_its_file_and_functions(
    path: str, said: str, reach_env: None
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        find_function("model", path)


@pytest.fixture
def reach_env(tmp_path, monkeypatch) -> Iterator[None]:
    """A module in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    text = "from json import loads\nclass Reach: ...\ndef make(): ...\ndef _own(): ...\n"
    (tmp_path / "reach_env.py").write_text(text)
    yield
    sys.modules.pop("reach_env", None)


@pytest.mark.parametrize("env", ["reach_env", "reach_env.py"])
def test_module_in_the_place_of_its_function_is_answered_with_the_function(
    env: str, reach_env: None
) -> None:
    said = "reach_env.py is here: use env=reach_env:Reach or env=reach_env:make"
    with pytest.raises(ValueError, match=re.escape(f"env={env} is no environment; {said}")):
        make_env_factory(env)
    assert "reach_env" not in sys.modules


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("json", "model=json names no function; use module:function, as in my_module:make"),
        ("json:", "model=json: names no function"),
        (":make", "model=:make: '' is no name of a module; give it as in an import"),
        ("./nets:make", r"model=\./nets:make: './nets' is no name of a module"),
        ("json.py:make", r"the module json\.py cannot be imported \(.*\); leave out \.py"),
        ("quits:make", "model=quits:make: the module quits cannot be imported: SystemExit: 3"),
    ],
)
def test_what_names_no_function_is_told_what_to_write(path, message, tmp_path, monkeypatch) -> None:
    (tmp_path / "quits.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=message):
        find_function("model", path)


def test_place_of_an_error_is_the_last_line_of_the_user_s_own() -> None:
    def broken() -> None:
        json.loads("{")

    with pytest.raises(ValueError) as info:
        broken()
    line = broken.__code__.co_firstlineno + 1
    assert place_of(info.value) == f" ({__file__}, line {line}, in broken)"


def test_place_of_an_error_can_leave_out_libraries() -> None:
    def broken() -> None:
        json.loads("{")

    with pytest.raises(ValueError) as info:
        broken()
    assert "in broken" in place_of(info.value, libraries=False)
    with pytest.raises(ValueError) as info:
        find_function("env", "json:loads")("{")
    assert "in raw_decode" in place_of(info.value.with_traceback(info.tb.tb_next))
    assert place_of(info.value.with_traceback(info.tb.tb_next), libraries=False) == ""
    assert place_of(ValueError("not raised")) == ""


def test_exit_of_the_user_s_code_is_an_error_with_its_place() -> None:
    def leave() -> None:
        sys.exit(0)

    line = leave.__code__.co_firstlineno + 1
    with pytest.raises(ExitError, match=rf"sys\.exit\(0\) .*line {line}, in leave\)"):
        with refusing_exit():
            leave()
