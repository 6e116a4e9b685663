"""The shape of the house: who imports whom, what is exported, how long things are."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKS = ("algos", "samplers")

# A part may import from its own layer and the ones after it.
LAYERS = (
    ("launch", "benchmarks", "examples"),
    ("__main__", "cli", "sweep", "tools"),
    ("ga3c",),
    ("training",),
    ("runs",),
    ("config", "option_kinds", "options", "presets"),
    ("algos", "parallel", "samplers", "vector"),
    ("agents", "envs", "models"),
    (
        "capture",
        "graphs",
        "console",
        "extras",
        "functions",
        "keys",
        "processes",
        "registration",
        "rollout",
        "settings",
        "signing",
        "spaces",
        "states",
        "stopping",
        "topology",
        "trackers",
    ),
)
NEVER = {("algos", "samplers"), ("samplers", "algos")}
WITHOUT_TORCH = (
    "envs",
    "extras",
    "functions",
    "keys",
    "processes",
    "rollout",
    "settings",
    "signing",
    "stopping",
    "topology",
    "trackers",
)

MAX_FUNCTION_LINES = 60  # docstring not counted

SOURCES = sorted(
    path
    for part in ("accel_rl", "benchmarks", "examples", "launch")
    for path in (ROOT / part).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MODULES = [path for path in SOURCES if path.is_relative_to(ROOT / "accel_rl")]
PACKAGES = sorted(module.parent for module in MODULES if module.name == "__init__.py")


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


def imports_in(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Dotted names of everything imported; relative ones begin with a dot."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            yield source
            if source.startswith(("accel_rl", "benchmarks")):  # the name may be a module
                yield from (f"{source}.{alias.name}" for alias in node.names)


def all_imports(path: Path) -> set[str]:
    return set(imports_in(ast.walk(ast.parse(path.read_text()))))


def imports_on_loading(path: Path) -> set[str]:
    """Without those that only a type checker or a function call brings."""

    def loaded(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            yield child
            yield from loaded(child)

    return set(imports_in(loaded(ast.parse(path.read_text()))))


def may_import(part: str, other: str) -> bool:
    layer_of = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    return (part, other) not in NEVER and layer_of[part] <= layer_of[other]


def run_python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


# ---- imports -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "other", "expected"),
    [
        ("training", "algos", True),
        ("agents", "models", True),
        ("envs", "samplers", False),
        ("algos", "samplers", False),
        ("samplers", "algos", False),
        ("config", "benchmarks", False),
        ("presets", "ga3c", False),
        ("rollout", "envs", False),
    ],
)
def test_import_rule_for_two_parts_allows_only_downwards(
    part: str, other: str, expected: bool
) -> None:
    assert may_import(part, other) is expected


def test_imports_of_each_file_run_downwards() -> None:
    wrong = {
        (name_of(path), module)
        for path in SOURCES
        if (part := part_of(module_of(path)))  # accel_rl/__init__.py is checked below
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


def test_imports_between_parts_make_no_cycle() -> None:
    imported_by: dict[str, set[str]] = {}
    for path in MODULES:
        if part := part_of(module_of(path)):
            names = {name for name in all_imports(path) if name.startswith("accel_rl.")}
            others = {other for name in names if (other := part_of(name))}
            imported_by.setdefault(part, set()).update(others - {part})
    assert not cycles_in(imported_by)


def test_imports_between_modules_make_no_cycle() -> None:
    """Those for type checkers and those in functions included."""
    benchmarks = [path for path in SOURCES if path.is_relative_to(ROOT / "benchmarks")]
    imported_by = {module_of(path): all_imports(path) for path in MODULES + benchmarks}
    assert sum(len(others & imported_by.keys()) for others in imported_by.values()) > 500
    assert not cycles_in(imported_by)


def test_cycle_of_imports_is_found() -> None:
    assert cycles_in({"a": {"b"}, "b": {"c", "x"}, "c": {"b"}, "d": set()}) == {
        "a": {"b"},
        "b": {"c"},
        "c": {"b"},
    }


def test_imports_of_each_file_are_absolute_and_not_through_the_links() -> None:
    wrong = {
        (name_of(path), module)
        for path in SOURCES + TESTS
        for module in all_imports(path)
        if module.split(".")[0] in ("", *LINKS)  # a relative one begins with a dot
    }
    assert not wrong


def test_tests_share_through_helpers_alone() -> None:
    wrong = {
        (name_of(path), module)
        for path in TESTS
        for module in all_imports(path)
        if module.split(".")[-1].startswith("test_")
    }
    assert not wrong


@pytest.mark.parametrize("part", WITHOUT_TORCH)
def test_parts_of_simulator_processes_never_name_torch(part: str) -> None:
    paths = [path for path in MODULES if part_of(module_of(path)) == part]
    assert paths
    for path in paths:
        assert "torch" not in {name.split(".")[0] for name in all_imports(path)}, name_of(path)


@pytest.mark.parametrize(
    "name", ["samplers.worker", "samplers.sampler", "vector.vector_env", "ga3c.sampler"]
)
def test_modules_that_need_no_torch_load_none_however_indirectly(name: str) -> None:
    by_module = {module_of(path): path for path in MODULES}
    todo, seen = [f"accel_rl.{name}"], set()
    while todo:
        module = todo.pop()
        if module in seen or module not in by_module:
            continue
        seen.add(module)
        imported = imports_on_loading(by_module[module])
        assert "torch" not in {name.split(".")[0] for name in imported}, module
        parents = module.split(".")
        todo += [*imported, *(".".join(parents[:n]) for n in range(1, len(parents)))]
    assert {"accel_rl.samplers", "accel_rl.rollout"} <= seen


def test_importing_the_package_starts_nothing_and_loads_no_torch() -> None:
    code = (
        "import accel_rl, accel_rl.envs, accel_rl.samplers.worker, accel_rl.topology\n"
        "import psutil, sys, threading\n"
        "print('torch' in sys.modules, psutil.Process().children(), threading.active_count())"
    )
    assert run_python(code).split() == ["False", "[]", "1"]


def test_package_can_be_imported_where_there_is_no_unix() -> None:
    code = (
        "import signal, sys, matplotlib, psutil, tensorboard, torch\n"
        "del signal.SIGHUP\n"
        "sys.modules |= {'fcntl': None, 'resource': None}\n"
        "import accel_rl.sweep.command, accel_rl.cli.tools\n"
        "from accel_rl.__main__ import main\n"
        "sys.exit(main(['--help']))"
    )
    assert "key=value" in run_python(code)


def test_pickles_are_between_a_process_and_its_own_workers_alone() -> None:
    """In memory without a name; never through a socket or from a file."""
    pickling = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
    users = {name_of(path) for path in MODULES if pickling & all_imports(path)}
    assert users == {f"accel_rl/samplers/{name}.py" for name in ("process", "worker")}
    objects = re.compile(r"\b(broadcast|gather|all_gather|scatter|send|recv)_object")
    assert not [name_of(path) for path in MODULES if objects.search(path.read_text())]
    loads = [
        ast.unparse(node)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert all("weights_only=True" in load for load in loads)


KNOWING = ("agents", "algos", "ga3c")
"""parts that may ask which algorithm there is"""
LEARNERS = re.compile(r"\b(A2C|PPO|DQN|GA3C|ActorCritic)(Config)?\b|\bEpsilonGreedyAgent\b")


def questions_in(source: str) -> list[str]:
    """Where code asks which algorithm it has: by a class, or by the name of the preset."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            if LEARNERS.search(ast.unparse(node.args[1])):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Compare | ast.Match):
            asked = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            asked += [node.subject] if isinstance(node, ast.Match) else []
            words = [ast.unparse(each) for each in asked]
            if any(re.search(r"\bconfig\.algo$|^type\(.*learner\)", each) for each in words):
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("if isinstance(config.learner, PPOConfig | DQNConfig): pass", 1),
        ("assert not isinstance(agent, EpsilonGreedyAgent)", 1),
        ("is_apart = any(config.algo == 'ga3c' for config in configs)", 1),
        ("own = config.algo in MODELS", 1),
        ("x = 1 if type(config.learner) is A2CConfig else 2", 1),
        ("match config.algo:\n    case 'ppo': pass", 1),
        ("isinstance(agent, RecurrentAgent)", 0),
        ("learner = PPOConfig(epochs=3) if algo == name else config.learner", 0),
    ],
)
def test_question_which_algorithm_there_is_is_found(code: str, expected: int) -> None:
    assert len(questions_in(code)) == expected


def test_nothing_but_algorithms_asks_which_algorithm_there_is() -> None:
    """The config builds and describes it, so that one of the user's own lacks nothing."""
    asking = {
        name_of(path): questions
        for path in MODULES
        if part_of(module_of(path)) not in KNOWING and (questions := questions_in(path.read_text()))
    }
    assert not asking


# ---- what there is -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LINKS)
def test_links_at_the_root_lead_to_their_packages(name: str) -> None:
    assert (ROOT / name).is_symlink()
    assert (ROOT / name).resolve() == ROOT / "accel_rl" / name


def test_each_file_compiles_without_a_warning() -> None:
    for path in SOURCES + TESTS:
        compile(path.read_text(), name_of(path), "exec", dont_inherit=True)


@pytest.mark.parametrize("folder", PACKAGES, ids=name_of)
def test_exported_names_equal_all(folder: Path) -> None:
    package = importlib.import_module(name_of(folder).replace("/", "."))
    exported = getattr(package, "__all__", [])
    assert len(set(exported)) == len(exported)
    for name in exported:
        assert getattr(package, name) is not None
    tree = ast.parse((folder / "__init__.py").read_text())
    typing_only = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("accel_rl")
        for alias in node.names
    }
    public = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public - typing_only <= set(exported)


def test_all_of_vector_can_be_imported_without_the_libraries_of_its_adapters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for library, module in (("stable_baselines3", "sb3_vec_env"), ("torchrl", "torchrl_env")):
        monkeypatch.setitem(sys.modules, library, None)
        monkeypatch.delitem(sys.modules, f"accel_rl.vector.{module}", raising=False)
    names: dict[str, object] = {}
    exec("from accel_rl.vector import *", names)
    assert "VectorEnv" in names and "SB3VecEnv" not in names


def test_each_file_opens_with_what_it_is_for() -> None:
    texts = {name_of(path): path.read_text() for path in SOURCES}
    assert not [
        name
        for name, text in texts.items()
        if text.strip() and ast.get_docstring(ast.parse(text)) is None
    ]


# ---- how long ------------------------------------------------------------------------------------


def length_of(node: ast.stmt) -> int:
    """Lines, without those of a docstring."""
    assert node.end_lineno is not None
    length = node.end_lineno - node.lineno + 1
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
        length -= length_of(node.body[0])
    return length


def test_each_function_is_short_enough() -> None:
    lengths = {
        f"{name_of(path)}:{node.name}": length_of(node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert not {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES}


def test_functions_of_training_have_five_parameters_at_most() -> None:
    counts = {
        f"{name_of(path)}:{node.name}": len(each.args + each.posonlyargs + each.kwonlyargs)
        - (bool(each.args) and each.args[0].arg in ("self", "cls"))
        for path in SOURCES
        if path.is_relative_to(ROOT / "accel_rl" / "training")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        for each in (node.args,)
    }
    assert counts and not {name: count for name, count in counts.items() if count > 5}


# ---- tests ---------------------------------------------------------------------------------------


def test_names_of_test_files_are_unique() -> None:
    names = [path.name for path in TESTS if path.name.startswith("test_")]
    assert len(set(names)) == len(names)


def gpu_tests_without_marker(source: str) -> list[str]:
    """Tests without ``@pytest.mark.gpu`` in a file whose ``pytestmark`` does not have it."""
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node.targets[0]):
            if "pytest.mark.gpu" in ast.unparse(node.value):
                return []
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if "pytest.mark.gpu" not in map(ast.unparse, node.decorator_list)
    ]


def test_each_test_of_the_gpu_folder_carries_the_marker() -> None:
    folder = ROOT / "tests" / "gpu"
    unmarked = {name_of(p): gpu_tests_without_marker(p.read_text()) for p in folder.rglob("*.py")}
    assert not {name: tests for name, tests in unmarked.items() if tests}


def test_a_gpu_test_without_the_marker_is_found() -> None:
    source = "@pytest.mark.gpu\ndef test_a(): ...\n@pytest.mark.slow\ndef test_b(): ...\n"
    assert gpu_tests_without_marker(source) == ["test_b"]
    assert gpu_tests_without_marker("pytestmark = [pytest.mark.gpu]\n" + source) == []
