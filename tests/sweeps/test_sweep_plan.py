"""Which runs a sweep consists of, what is refused, and where they go."""

from functools import cache
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from accel_rl.__main__ import main
from accel_rl.sweeps.command import make_directory
from accel_rl.sweeps.plan import (
    PlannedRun,
    SweepOptions,
    check_runs,
    grow,
    plan_runs,
    read_options,
    read_plan,
    write_plan,
)
from accel_rl.sweeps.slots import Slot, make_slots, slots_here
from accel_rl.system.topology import Core, Machine

MACHINE = Machine(tuple(Core((2 * i, 2 * i + 1)) for i in range(4)))


def test_runs_are_the_product_of_the_lists_in_order() -> None:
    runs = plan_runs({"algo": "a2c,ppo", "env": "pong,breakout", "seed": "0,1", "gamma": "0.9"})
    assert [run.name for run in runs] == [
        *("pong-a2c-0", "pong-a2c-1", "breakout-a2c-0", "breakout-a2c-1"),
        *("pong-ppo-0", "pong-ppo-1", "breakout-ppo-0", "breakout-ppo-1"),
    ]
    assert runs[-1].arguments == ("algo=ppo", "env=breakout", "seed=1", "gamma=0.9")
    assert runs[-1].config.learner.gamma == 0.9
    assert {run.label for run in runs} == {"a2c", "ppo"}


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({"learner.lr": "1e-3,3e-3"}, ["catch-a2c-0-lr-1e-3", "catch-a2c-0-lr-3e-3"]),
        ({"seed": "0..2,7"}, [f"catch-a2c-{seed}" for seed in (0, 1, 2, 7)]),
        ({"seed": "9..10,3..3"}, [f"catch-a2c-{seed}" for seed in (9, 10, 3)]),
        ({"seed": f"{2**53},{2**53 + 1}"}, [f"catch-a2c-{seed}" for seed in (2**53, 2**53 + 1)]),
        ({"num_workers": "1..2"}, [f"catch-a2c-0-num_workers-{n}" for n in (1, 2)]),
        ({"env": "ALE/..Pong"}, ["ALE-..Pong-a2c-0"]),  # dots in text are no range
        ({"env": "CartPole-v1", "info_keys": "step,x", "seed": "0..1"}, None),
        ({"env": "CartPole-v1", "info_keys": "[step,x]", "seed": "0..1"}, None),
    ],
    ids=str,
)
def test_names_have_what_varies_and_lists_and_ranges_are_read(
    axes: dict[str, str], expected: list[str] | None
) -> None:
    runs = plan_runs({"env": "catch"} | axes)
    assert [run.name for run in runs] == (expected or ["CartPole-v1-a2c-0", "CartPole-v1-a2c-1"])
    if expected is None:  # a list is one value
        assert {run.config.info_keys for run in runs} == {("step", "x")}


def test_long_names_of_runs_are_short_enough_for_files_and_differ() -> None:
    runs = plan_runs({"env": "catch", "run_dir": "a", "init": f"{'a' * 299}/b,{'a' * 299}/c"})
    assert all(len(run.name) < 250 for run in runs) and runs[0].name != runs[1].name


REFUSED = [
    ("", "a sweep needs lists of options, as in algo=a2c,ppo env=pong seed=0,1,2"),
    ("seed=0,1,0", "runs seed=0 and seed=0 are the same, or would both be called"),
    ("seed=4..0", "seed=4..0: 4..0 is no range; write the first integer and the last"),
    ("lr=1e-3..", "lr=1e-3..: 1e-3.. is no range"),
    ("sed=0..1", "run sed=0..1: unknown option sed; did you mean seed?"),
    ("part=3/2 seed=1", "part=3/2 is not one of 1/2 to 2/2"),
    ("run_dir=x seed=1", "run_dir=x cannot be given to a sweep"),
    ("resume=absent", "absent holds no sweep: there is no sweep.yaml in it"),
    ("--slots=2", "'--slots=2': options are written without dashes: slots=2"),
]
SLOWLY_REFUSED = [
    ("learner.lr=1e-3,0.001", "runs learner.lr=1e-3 and learner.lr=0.001 are the same"),
    (
        "algo=ppo normalize_advantage=true,True",
        "runs algo=ppo normalize_advantage=true and algo=ppo normalize_advantage=True are",
    ),
    ("seed=0..", "seed=0..: 0.. is no range"),
    ("seed=0-4", "seed=0-4: 0-4 is no range"),
    ("seed=0..9999999999999", "this sweep would have more than 10,000 runs"),
    ("env=catch slot=2", "run env=catch slot=2: unknown option slot"),
    ("algo=a2c,ppo epochs=3", "run algo=a2c epochs=3: epochs=3 cannot be given with algo=a2c"),
    ("algo=ppo env=catch num_envs=8,7", "run algo=ppo env=catch num_envs=7: num_envs=7"),
    ("env=pongg,pong", "run env=pongg: "),
    ("env=catch device=cuda", "run env=catch device=cuda: device=cuda, but torch finds no"),
    ("slots=0 seed=1", "slots is 0; it must be at least 1"),
    ("part=3/3 seed=1,2", "part=3/3 has no run: there are 2 in all"),
    ("cpus=4095 env=catch", "cpus=[4095] names CPUs 4095, which are not available"),
    ("resume=x lr=1", "lr=1 cannot be given with resume=x"),
    ("resume=x sweep_dir=y", "sweep_dir=y cannot be given with resume=x"),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [*REFUSED, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOWLY_REFUSED)],
)
def test_bad_input_is_refused_with_one_message_before_anything_starts(
    arguments: str, message: str, tmp_path, monkeypatch, capsys
) -> None:
    if "device=cuda" in arguments:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *arguments.split()]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_place_that_is_in_use_is_refused(tmp_path) -> None:
    (tmp_path / "note.txt").touch()
    with pytest.raises(ValueError, match=f"sweep_dir={tmp_path} is not empty; choose .* resume="):
        make_directory(SweepOptions(sweep_dir=str(tmp_path)), [])
    with pytest.raises(OSError, match="File exists"):
        make_directory(SweepOptions(sweep_dir=str(tmp_path / "note.txt")), [])


def test_parts_share_a_folder_if_they_are_parts_of_the_same_sweep(tmp_path) -> None:
    folder = tmp_path / "sweep"
    runs, others = (plan_runs({"env": "catch", "seed": seeds}) for seeds in ("0,1", "0,2"))
    part = SweepOptions(part="2/2", sweep_dir=str(folder))
    folder.mkdir()
    (folder / ".sweep.yaml.other-1.part").touch()  # what another part is just writing
    assert make_directory(part, runs) == make_directory(part, runs) == folder
    assert read_plan(folder) == runs
    for options, given in ((part, others), (SweepOptions(sweep_dir=str(folder)), runs)):
        with pytest.raises(ValueError, match="is not empty; choose another, or go on with resume"):
            make_directory(options, given)


def test_a_replay_is_made_small_for_the_check(monkeypatch) -> None:
    sizes = []
    monkeypatch.setattr(
        "accel_rl.algos.replay.memory.check_free_memory",
        lambda spec, *_: sizes.append(spec.nbytes),
    )
    check_runs(plan_runs({"algo": "dqn,rainbow", "env": "catch", "seed": "0,1"}))
    assert len(sizes) == 2 and max(sizes) < 1e7


def test_learners_among_whom_runs_cannot_be_divided_are_refused_before_any_run() -> None:
    message = "learners=3: num_envs=16 does not divide among 3 learners"
    with pytest.raises(ValueError, match=message):
        check_runs(plan_runs({"env": "catch", "gpus": "0", "learners": "1,3"}))


def test_plan_that_is_written_is_the_one_that_is_read(tmp_path) -> None:
    runs = plan_runs({"algo": "a2c,ppo", "seed": "0,1", "total_steps": "1e6", "num_workers": "0"})
    write_plan(tmp_path, runs)
    assert read_plan(tmp_path) == runs
    tree = OmegaConf.to_container(OmegaConf.load(tmp_path / "sweep.yaml"))
    assert tree["options"]["algo"] == ["a2c", "ppo"] and len(tree["runs"]) == 4  # for people


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("]", "sweep.yaml cannot be read"),
        ("a: 1", "sweep.yaml cannot be read"),
        ("{options: {env: [catch]}, runs: [other]}", "sweep.yaml is of another version"),
    ],
)
def test_plan_that_cannot_be_read_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_plan(tmp_path)


def test_options_of_the_sweep_are_told_from_those_of_its_runs() -> None:
    options, axes = read_options(["slots=3", "cpus=0,1", "part=2/4", "env=pong,catch"])
    assert options == SweepOptions(slots=3, cpus=(0, 1), part="2/4")
    assert axes == {"env": "pong,catch"}


@pytest.mark.parametrize(
    ("options", "gpus", "expected"),
    [
        ({}, "", [Slot(tuple(range(8)), ())]),
        ({}, "01", [Slot((0, 1, 2, 3), ("0",)), Slot((4, 5, 6, 7), ("1",))]),
        ({"slots": 2}, "", [Slot((0, 1, 2, 3), ()), Slot((4, 5, 6, 7), ())]),
        ({"slots": 1}, "01", [Slot(tuple(range(8)), ("0", "1"))]),
        ({"slots": 4}, "01", [Slot((2 * i, 2 * i + 1), (str(i // 2),)) for i in range(4)]),
        ({"slots": 2, "cpus": (2, 3, 7)}, "", [Slot((2, 3), ()), Slot((7,), ())]),
    ],
    ids=str,
)
def test_slots_share_cores_and_gpus_in_order(options: dict, gpus: str, expected: list) -> None:
    assert make_slots(SweepOptions(**options), list(gpus), MACHINE) == expected


@pytest.mark.parametrize(
    ("visible", "device", "expected"),
    [
        (None, "auto", ["0", "1"]),
        ("3,5", "auto", ["3", "5"]),
        ("3,5", "cpu", []),
        ("0,1,-1,7", "auto", ["0", "1"]),
        ("MIG-a,MIG-b,MIG-c", "auto", ["MIG-a", "MIG-b", "MIG-c"]),  # of which CUDA shows one
    ],
)
def test_gpus_are_those_that_this_process_may_use_if_a_run_wants_one(
    visible: str | None, device: str, expected: list[str], monkeypatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (run,) = plan_runs({"env": "catch", "device": device})
    slots = slots_here(SweepOptions(), [run.config])
    assert [gpu for slot in slots for gpu in slot.gpus] == expected


@pytest.mark.parametrize(
    ("options", "axes", "expected"),
    [
        ({}, {"gpus": "2"}, [("0", "1"), ("2", "3"), ("4", "5", "6")]),
        ({}, {"learners": "3"}, [("0", "1", "2"), ("3", "4", "5", "6")]),
        ({}, {"learners": "4", "gpus": "2"}, [("0", "1"), ("2", "3"), ("4", "5", "6")]),
        ({}, {"gpus": "1,5"}, [("0", "1", "2", "3", "4", "5", "6")]),
        ({}, {"gpus": "8"}, [("0", "1", "2", "3", "4", "5", "6")]),  # each run refuses that
        ({}, {"learners": "2", "gpus": "0"}, [()]),
        ({"slots": 3}, {"gpus": "2"}, [("0", "1"), ("2", "3"), ("4", "5", "6")]),
        ({"slots": 7}, {"learners": "2"}, [(str(gpu),) for gpu in range(7)]),
    ],
    ids=str,
)
def test_slots_have_gpus_enough_for_the_learners_of_a_run(
    options: dict, axes: dict, expected: list, monkeypatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 7)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    configs = [run.config for run in plan_runs({"env": "catch", **axes})]
    slots = slots_here(SweepOptions(**options), configs)
    assert [slot.gpus for slot in slots] == expected


def test_slots_too_many_for_the_gpus_of_a_run_are_refused(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 7)
    configs = [run.config for run in plan_runs({"env": "catch", "gpus": "2"})]
    with pytest.raises(ValueError, match=r"slots=4 gives a run 1 of 7 GPUs.* use slots=3 or fewer"):
        slots_here(SweepOptions(slots=4), configs)


def test_slots_share_no_more_cores_than_the_quota_pays_for() -> None:
    slots = make_slots(SweepOptions(slots=2), [], MACHINE._replace(quota=2.5))
    assert slots == [Slot((0, 1), ()), Slot((2, 3), ())]


BEFORE = {"env": "catch", "seed": "0,1", "lr": "1e-3", "total_steps": "1000"}


@cache
def runs_before() -> list[PlannedRun]:
    return plan_runs(BEFORE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"seed": "3,1,0", "total_steps": "2e3"},
        {"env": "catch,CartPole-v1", "algo": "a2c,ppo"},
    ],
)
def test_sweep_grows_by_longer_lists_and_keeps_its_runs(given: dict[str, str], tmp_path) -> None:
    runs = runs_before()
    grown = grow(tmp_path, runs, given)
    assert grown == plan_runs(BEFORE | given)
    assert {run.name for run in runs} <= {run.name for run in grown}
    write_plan(tmp_path, grown)
    assert read_plan(tmp_path) == grown


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": "1..3"}, "with seed=1..3 the run catch-a2c-0 would not be in the sweep any more"),
        ({"total_steps": "999"}, "total_steps=999 is less than the sweep's; give 1000 or more"),
        ({"total_steps": "2e3,3e3"}, "the run catch-a2c-0 would not be in the sweep any more"),
        ({"total_steps": "2k"}, "total_steps=2k is not valid"),
    ],
)
def test_sweep_that_would_lose_or_change_a_run_does_not_grow(
    given: dict[str, str], message: str, tmp_path
) -> None:
    with pytest.raises(ValueError, match=message):
        grow(tmp_path, runs_before(), given)
