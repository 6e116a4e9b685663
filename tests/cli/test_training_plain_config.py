"""The config as learners share it: every option arrives as it was."""

import dataclasses
import json

import pytest

from accel_rl.cli.parse import parse_arguments
from accel_rl.cli.plain_config import from_plain, to_plain
from accel_rl.presets import PRESETS


@pytest.mark.parametrize("algo", PRESETS)
def test_config_of_each_preset_arrives_as_it_was(algo: str) -> None:
    config = PRESETS[algo]()
    assert repr(from_plain(json.loads(json.dumps(to_plain(config))))) == repr(config)


def test_given_options_arrive_as_they_were() -> None:
    given = ["env=catch", "algo=async_dqn", "optimizer=adam", "lr=3e-4", "cpus=[0,1]", "learners=2"]
    config = dataclasses.replace(
        parse_arguments(given), run_dir="${oc.env:HOME}/ü", info_keys=("a", "b")
    )
    found = from_plain(json.loads(json.dumps(to_plain(config))))
    assert repr(found) == repr(config) and found == config
    assert found.run_dir == config.run_dir and found.cpus == (0, 1)


@pytest.mark.parametrize("what", ["more", "fewer", "more in a group", "no group", "preset", "kind"])
def test_config_of_another_version_is_one_message(what: str) -> None:
    plain = to_plain(PRESETS["a2c"]())
    if what == "more":
        plain["brand_new"] = 3
    elif what == "fewer":
        del plain["seed"]
    elif what == "more in a group":
        plain["sampler"]["brand_new"] = 3
    elif what == "no group":
        plain["sampler"] = 3
    elif what == "preset":
        plain["algo"] = "brand_new"
    with pytest.raises(ValueError, match="install the same version on all machines"):
        from_plain([plain] if what == "kind" else plain)


def test_option_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="seed"):
        from_plain(to_plain(PRESETS["a2c"]()) | {"seed": "import os"})
