"""The shape of the house: who imports whom, and what is exported."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKS = ("algos", "samplers")

# A part may import from its own layer and the ones after it.
LAYERS = [
    layer.split()
    for layer in (
        "launch benchmarks examples",
        "api",
        "__main__ cli sweeps tools",
        "ga3c",
        "training",
        "runs",
        "config presets",
        "algos parallel samplers vector",
        "agents envs models",
        "graphs keywords options rollout spaces system trackers",
    )
]
LAYER_OF = {name: number for number, layer in enumerate(LAYERS) for name in layer}
NEVER = {("algos", "samplers"), ("samplers", "algos")}
WITHOUT_TORCH = "envs options rollout system trackers"
SOURCES = sorted(
    path
    for part in ("accel_rl", "benchmarks", "examples", "launch")
    for path in (ROOT / part).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MODULES = [path for path in SOURCES if path.is_relative_to(ROOT / "accel_rl")]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    """accel_rl/envs/__init__.py -> accel_rl.envs"""
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def part_of(module: str) -> str | None:
    """accel_rl.envs.atari -> envs; None for the package itself.

    GA3C's learner stands beside its threads, and imports what other algorithms do.
    """
    names = module.split(".")
    if names[1:3] == ["ga3c", "learner"]:
        return "algos"
    return names[0] if names[0] != "accel_rl" else names[1] if len(names) > 1 else None


@cache
def code_of(path: Path) -> str:
    """Without what stands in triple quotes."""
    return re.sub(r'"""(?s:.)*?"""', "", path.read_text())


def all_imports(path: Path) -> set[str]:
    """Dotted names of everything imported; relative ones begin with a dot."""
    found = set(re.findall(r"^ *(?:import|from) ([\w.]+)", code_of(path), re.MULTILINE))
    names = r"^ *from ((?:accel_rl|benchmarks)[\w.]*) import (\([^)]*\)|.+)"
    for source, imported in re.findall(names, code_of(path), re.MULTILINE):
        imported = re.sub(r"#.*| as \w+", "", imported)  # the names may be modules
        found |= {f"{source}.{name}" for name in re.findall(r"\w+", imported)}
    return found


def imports_on_loading(path: Path) -> Iterator[str]:
    """Without those that only a type checker or a function call brings."""
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        for child in ast.iter_child_nodes(todo.pop()):
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                yield child.module
                yield from (f"{child.module}.{alias.name}" for alias in child.names)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                todo += child.orelse
            elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
                todo.append(child)


def may_import(part: str, other: str) -> bool:
    return (part, other) not in NEVER and LAYER_OF[part] <= LAYER_OF[other]


def run_python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


# ---- imports -------------------------------------------------------------------------------------


def test_imports_of_each_file_run_downwards() -> None:
    wrong = {
        (name_of(path), module)
        for path in SOURCES
        if (part := part_of(module_of(path)))
        for module in all_imports(path)
        if module.startswith("accel_rl.")
        and (other := part_of(module)) not in (None, part, "__version__")
        and not may_import(part, other)
    }
    assert not wrong


def cycles_in(imported_by: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is in a cycle of imports, or imports one."""
    # What imports nothing that is left can be taken away; a cycle never can.
    left = imported_by
    while free := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others & left.keys() for name, others in left.items() if name not in free}
    return left


def test_imports_make_no_cycle() -> None:
    """Neither between modules nor between parts; for type checkers and in functions included."""
    paths = [path for path in SOURCES if name_of(path).startswith(("accel_rl", "benchmarks"))]
    modules = {module_of(path): all_imports(path) for path in paths}
    del modules["accel_rl"]  # which loads its names when they are used; others take its version
    assert sum(len(others & modules.keys()) for others in modules.values()) > 500
    parts: dict[str, set[str]] = {}
    for module, others in modules.items():
        if module.startswith("accel_rl.") and (part := part_of(module)):
            found = {part_of(each) for each in others if each.startswith("accel_rl.")}
            parts.setdefault(part, set()).update(found - {part, None})  # type: ignore[arg-type]
    assert not cycles_in(modules) and not cycles_in(parts)


def test_imports_are_absolute_and_tests_share_through_helpers_alone() -> None:
    wrong = {
        (name_of(path), module)
        for path in SOURCES + TESTS
        for module in all_imports(path)
        if module.split(".")[0] in ("", *LINKS) or module.split(".")[-1].startswith("test_")
    }
    assert not wrong


def test_parts_of_simulator_processes_never_name_torch() -> None:
    paths = [path for path in MODULES if part_of(module_of(path)) in WITHOUT_TORCH.split()]
    paths.remove(ROOT / "accel_rl/system/registration.py")  # memory for copies to a GPU
    assert len(paths) > 20
    assert not [
        name_of(path) for path in paths if re.search(r"\b(from|import) torch", code_of(path))
    ]


def test_modules_that_need_no_torch_load_none_however_indirectly() -> None:
    by_module = {module_of(path): path for path in MODULES}
    names = ("samplers.worker", "samplers.sampler", "vector.vector_env", "ga3c.sampler")
    todo, seen = [f"accel_rl.{name}" for name in names], set[str]()
    while todo:
        module = todo.pop()
        if module in seen or module not in by_module:
            continue
        seen.add(module)
        imported = list(imports_on_loading(by_module[module]))
        assert "torch" not in {name.split(".")[0] for name in imported}, module
        parents = module.split(".")
        todo += [*imported, *(".".join(parents[:n]) for n in range(1, len(parents)))]
    assert {"accel_rl.samplers", "accel_rl.rollout"} <= seen


@pytest.mark.processes
def test_importing_the_package_starts_nothing_and_loads_no_torch() -> None:
    code = (
        "import accel_rl, accel_rl.envs, accel_rl.samplers.worker, accel_rl.system.topology\n"
        "import psutil, sys, threading\n"
        "print('torch' in sys.modules, psutil.Process().children(), threading.active_count())"
    )
    assert run_python(code).split() == ["False", "[]", "1"]


@pytest.mark.processes
@pytest.mark.slow
def test_package_can_be_imported_where_there_is_no_unix() -> None:
    code = (
        "import signal, sys, matplotlib, psutil, tensorboard, torch\n"
        "del signal.SIGHUP\n"
        "sys.modules |= {'fcntl': None, 'resource': None}\n"
        "import accel_rl.sweeps.command, accel_rl.cli.tools\n"
        "from accel_rl.__main__ import main\n"
        "sys.exit(main(['--help']))"
    )
    assert "key=value" in run_python(code)


def test_pickles_are_between_a_process_and_its_own_workers_alone() -> None:
    """In memory without a name; never through a socket or from a file."""
    pickling = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
    users = {name_of(path) for path in MODULES if pickling & all_imports(path)}
    names = ("cli/launcher", "samplers/process", "samplers/shared", "samplers/worker")
    assert users == {f"accel_rl/{name}.py" for name in names}
    objects = re.compile(r"\b(broadcast|gather|all_gather|scatter|send|recv)_object")
    assert not [name_of(path) for path in MODULES if objects.search(code_of(path))]
    loads = [
        load
        for path in MODULES
        for load in re.findall(r"torch\.load\((?:[^()]|\([^()]*\))*\)", code_of(path))
    ]
    assert loads and all("weights_only=True" in load for load in loads)


# ---- what there is -------------------------------------------------------------------------------


def test_all_of_vector_can_be_imported_without_the_libraries_of_its_adapters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.delitem(sys.modules, "accel_rl.vector.sb3_vec_env", raising=False)
    names: dict[str, object] = {}
    exec("from accel_rl.vector import *", names)
    assert "VectorEnv" in names and "SB3VecEnv" not in names
