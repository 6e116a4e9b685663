"""Arbitrary text in place of options, files and lists: a config, or one plain message.

`EXAMPLES=2000 python -m pytest tests/cli/test_parsers.py` tries more than `make test` does.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accel_rl.cli.parse import parse_arguments
from accel_rl.options import format_value, list_options
from accel_rl.presets import PRESETS, find_preset
from accel_rl.runs.checkpoint import load_checkpoint, save_checkpoint
from accel_rl.runs.files import read_bytes, read_text
from accel_rl.runs.saved import read_config
from accel_rl.runs.yaml_file import read_yaml
from accel_rl.sweeps.plan import plan_runs, read_options
from accel_rl.system.states import decode_state, encode_state

some = settings(
    max_examples=int(os.environ.get("EXAMPLES", 15)),
    deadline=None,
    database=None,
    derandomize="EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
OPTIONS = {option.key: option for algo in PRESETS for option in list_options(find_preset(algo)())}
NAMES_OF_OPTIONS = {name for option in OPTIONS.values() for name in (option.key, option.name)}
KEYS = sorted({*NAMES_OF_OPTIONS, "algo", "config", "resume"})
GROUPS = sorted({option.group for option in OPTIONS.values()} - {""})
ODD = """true false none auto 1e400 -0 0..3 1,2 [1,2] [ ] ${a} ${oc.env:HOME} ??? a:b : ~ ~x nan
-inf 1e18 1_000 0x10 ٣ 1.5 . .. / {} {a:1} [[1]] !!python/object:os.system off on 0..999999999999
1e308 a2c ppo dqn ga3c catch pong 1/4 9/0"""
VALUES = st.one_of(
    st.sampled_from([*ODD.split(), "", " ", "\0", "a\nb", "9" * 400, "9" * 5_000, "\x1b[2J"]),
    st.text(max_size=12),
    st.integers().map(str),
    st.floats().map(repr),
)
ARGUMENTS = st.lists(
    st.one_of(st.builds("{}={}".format, st.sampled_from(KEYS), VALUES), st.text(max_size=10)),
    max_size=4,
)
SCALARS = st.one_of(VALUES, st.integers(), st.floats(), st.booleans(), st.none())
NAMES = st.one_of(st.sampled_from(KEYS + GROUPS), st.text(max_size=4), st.integers(), st.none())
TREES = st.recursive(
    SCALARS,
    lambda each: st.one_of(st.lists(each, max_size=2), st.dictionaries(NAMES, each, max_size=3)),
    max_leaves=6,
)
YAML_TEXT = st.text(alphabet="abenv:[]{}&*!|>-\n \t'\"#%@`,?=10.~$", max_size=40)


def to_yaml(tree: object) -> bytes:
    return yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass")


FILES = st.one_of(TREES.map(to_yaml), YAML_TEXT.map(str.encode), st.binary(max_size=40))


def is_config_or_message(read: Callable[[], Any]) -> None:
    """Anything but a ValueError with a text would be a traceback for the user."""
    try:
        read()
    except ValueError as error:
        assert str(error).strip() and "Traceback" not in str(error)


@pytest.fixture(autouse=True, scope="module")
def here(tmp_path_factory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("here"))
        Path("run").mkdir()
        yield


@pytest.mark.slow
@some
@given(ARGUMENTS)
def test_any_command_line_is_a_config_or_a_message(arguments: list[str]) -> None:
    is_config_or_message(lambda: parse_arguments(arguments))


@pytest.mark.slow
@some
@given(st.sampled_from(KEYS), VALUES)
def test_any_value_of_an_option_is_a_config_or_a_message(key: str, value: str) -> None:
    is_config_or_message(lambda: parse_arguments([f"{key}={value}"]))


@pytest.mark.slow
@some
@given(FILES)
def test_any_option_file_is_a_config_or_a_message(data: bytes) -> None:
    Path("options.yaml").write_bytes(data)
    is_config_or_message(lambda: parse_arguments(["config=options.yaml"]))


@pytest.mark.slow
@some
@given(st.sampled_from([*PRESETS]), st.dictionaries(NAMES, TREES, max_size=3))
def test_any_config_of_a_run_is_a_config_or_a_message(algo: str, tree: dict[Any, Any]) -> None:
    Path("run/config.yaml").write_bytes(to_yaml({"algo": algo, "env": "catch", **tree}))
    is_config_or_message(lambda: read_config("run"))


@pytest.mark.parametrize("text", ["'0'", "''", "- 1", "\x00", "{", "a: &a [*a]", "[" * 5_000])
def test_option_file_without_options_is_a_message(text: str) -> None:
    Path("options.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"options\.yaml (cannot be read: .|holds no)"):
        parse_arguments(["config=options.yaml"])


@pytest.mark.parametrize("text", ["parallel: 3.5", "info_keys: {a: b}", "learner: [1]"])
def test_value_of_another_kind_in_a_run_is_a_message(text: str) -> None:
    Path("run/config.yaml").write_text(f"algo: a2c\nenv: catch\n{text}\n")
    with pytest.raises(ValueError, match=r"config\.yaml is not valid: ."):
        read_config("run")


@pytest.mark.slow
@some
@given(ARGUMENTS)
def test_any_sweep_is_a_plan_or_a_message(arguments: list[str]) -> None:
    def plan() -> None:
        options, axes = read_options(arguments)
        if options.config is None and options.resume is None:
            plan_runs(axes)

    is_config_or_message(plan)


@some
@given(st.binary(max_size=80), st.integers(0, 2_000), st.booleans())
def test_any_bytes_in_a_checkpoint_are_its_state_or_a_message(
    data: bytes, place: int, is_cut: bool
) -> None:
    state = {"counts": {"steps": 7}, "weight": torch.arange(40.0)}
    path = save_checkpoint(Path("run"), 7, state)
    whole = path.read_bytes()
    start = place * len(whole) // 2_000
    path.write_bytes(whole[:start] + data + (b"" if is_cut else whole[start + len(data) :]))
    try:
        loaded = load_checkpoint(path)
    except ValueError as error:
        assert str(path) in str(error)
    else:
        assert loaded["counts"] == {"steps": 7}
        assert torch.equal(loaded["weight"], state["weight"])


@pytest.mark.nightly
@some
@given(st.sampled_from([*OPTIONS]))
def test_value_as_help_shows_it_is_the_value(key: str) -> None:
    """Given for a preset that has the option: the same config, or a message that says why not."""
    algo = next(each for each in PRESETS if key in {o.key for o in list_options(PRESETS[each]())})
    base = parse_arguments([f"algo={algo}"])
    value = format_value(next(o.default for o in list_options(base) if o.key == key))
    if key in ("algo", "resume", "config"):
        return
    try:
        assert parse_arguments([f"algo={algo}", f"{key}={value}"]) == base
    except ValueError as error:
        assert "has no effect" in str(error) or "none" in value


STATES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
    | st.binary(max_size=9),
    lambda each: st.one_of(
        st.lists(each, max_size=3),
        st.lists(each, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=6), st.integers()), each, max_size=3),
    ),
    max_leaves=8,
)


@some
@given(STATES)
def test_state_that_is_encoded_and_decoded_is_the_same(state: object) -> None:
    decoded = decode_state(encode_state(state))
    assert decoded == state and repr(decoded) == repr(state)


@some
@given(st.binary(max_size=60), st.integers(0, 400))
def test_any_bytes_in_a_state_are_a_state_or_a_message(data: bytes, place: int) -> None:
    whole = encode_state({"a": [1, (2, b"x")]})
    is_config_or_message(lambda: decode_state(whole[:place] + data + whole[place + len(data) :]))


@pytest.mark.parametrize(
    "read", [lambda path: read_bytes(path, 1 << 20), partial(read_yaml, trust=True), read_text]
)
def test_file_of_a_terabyte_is_refused_before_it_fills_the_memory(
    read: Callable[[Path], Any], tmp_path, monkeypatch
) -> None:
    """Of holes alone it takes no place on the disk."""
    monkeypatch.setattr("accel_rl.runs.files.MOST_TABLE_BYTES", 1 << 20)
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises((OSError, ValueError), match=r"it is larger than \d+ MiB"):
        read(path)
