"""What `pip install accel_rl` installs is enough for samplers and vector environments.

Programs run in a virtual environment that has links to these packages alone.
"""

import re
import subprocess
import sys
import textwrap
import tomllib
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from accel_rl import __version__
from accel_rl.__main__ import main
from accel_rl.system.extras import TRAINING_PACKAGES

ROOT = Path(__file__).resolve().parents[2]
BASE = ("cloudpickle", "gymnasium", "numpy", "psutil")
NEEDED_BY_BASE = ("farama_notifications", "typing_extensions")
OF_EXTRAS = (*TRAINING_PACKAGES, "ale_py", "stable_baselines3", "torchrl", "tensordict")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which accel_rl is installed without any extra."""
    folder = tmp_path_factory.mktemp("base")
    packages = folder / "packages"
    packages.mkdir()
    (packages / "accel_rl").symlink_to(ROOT / "accel_rl")
    for name in (*BASE, *NEEDED_BY_BASE):
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None
        path = Path(spec.origin)
        path = path.parent if path.name == "__init__.py" else path
        # The libraries in C that some packages have lie beside it.
        for each in (path, *path.parent.glob(f"{name}.libs")):
            (packages / each.name).symlink_to(each)
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    (site_packages,) = environment.glob("lib/python*/site-packages")
    (site_packages / "base.pth").write_text(f"{packages}\n")
    return environment / "bin" / "python"


def run(python: Path, folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess:
    (folder / "program.py").write_text(textwrap.dedent(program))
    command = [str(python), *(arguments or ["program.py"])]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


@pytest.mark.processes
@pytest.mark.slow
def test_samplers_and_vector_environments_run_on_the_base_packages(
    python: Path, tmp_path: Path
) -> None:
    program = """
        import sys
        from importlib.util import find_spec

        import gymnasium
        import numpy as np
        import accel_rl.ga3c.sampler
        from accel_rl.samplers import ParallelSampler, SerialSampler
        from accel_rl.vector import VectorEnv

        class Count(gymnasium.Env):
            observation_space = gymnasium.spaces.Box(0, np.inf, (1,))
            action_space = gymnasium.spaces.Discrete(2)

            def reset(self, **options):
                self.steps = 0
                return np.zeros(1, np.float32), {}

            def step(self, action):
                self.steps += 1
                return np.full(1, self.steps, np.float32), 1.0, False, self.steps == 5, {}

        def policy(step):
            return np.zeros(len(step.observation), np.int64)

        if __name__ == "__main__":
            assert not [name for name in sys.argv[1:] if find_spec(name)]
            for env in ("CartPole-v1", "catch", Count):
                for make in (SerialSampler, ParallelSampler):
                    with make(env, num_envs=4, horizon=8) as sampler:
                        assert sampler.collect(policy).action.shape == (8, 4)
            for num_workers in (0, 2):
                env = VectorEnv("CartPole-v1", 4, num_workers=num_workers)
                env.reset(seed=0)
                assert env.step(np.zeros(4, np.int64))[0].shape == (4, 4)
                env.close()
            print("done")
    """
    done = run(python, tmp_path, program, "program.py", *OF_EXTRAS)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


MISSING = [
    ("from accel_rl.samplers import ActionServer", "torch", "train"),
    ("from accel_rl.vector import SB3VecEnv", "stable_baselines3", "sb3"),
    ("VectorEnv('breakout', 2)", "ale_py", "atari"),
    ("VectorEnv('breakout', 2, atari=AtariConfig())", "ale_py", "atari"),
    ("VectorEnv('ALE/Pong-v5', 2)", "ale_py", "atari"),
    ("ParallelSampler('pong')", "ale_py", "atari"),
]


@pytest.mark.processes
@pytest.mark.slow
def test_message_has_the_missing_package_and_the_command_that_installs_it(
    python: Path, tmp_path: Path
) -> None:
    program = f"""
        from accel_rl.envs import AtariConfig
        from accel_rl.samplers import ParallelSampler
        from accel_rl.vector import VectorEnv

        for statement, *_ in {MISSING}:
            try:
                exec(statement)
            except (ImportError, ValueError) as error:
                print(error)
    """
    done = run(python, tmp_path, program)
    assert not done.stderr
    for said, (_, missing, extra) in zip(done.stdout.splitlines(), MISSING, strict=True):
        assert re.search(rf"\b{missing}\b", said) and f'pip install "accel_rl[{extra}]"' in said


@pytest.mark.processes
@pytest.mark.parametrize(
    "command", [["-m", "accel_rl", "train"], [str(ROOT / "launch/train.py"), "env=catch"]]
)
def test_command_without_the_packages_of_training_says_what_to_install(
    python: Path, tmp_path: Path, command: list[str]
) -> None:
    done = run(python, tmp_path, "", *command)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert done.stderr.endswith('pip install "accel_rl[train]"\n')


@pytest.mark.processes
@pytest.mark.parametrize("arguments", ["--help", "train algo=ppo --help", "plot --help", "presets"])
def test_help_needs_no_package_of_an_extra(python: Path, tmp_path: Path, arguments: str) -> None:
    done = run(python, tmp_path, "", "-m", "accel_rl", *arguments.split())
    assert (done.returncode, done.stderr) == (0, "") and "=" in done.stdout


def test_run_of_a_game_without_its_emulator_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.delitem(sys.modules, "accel_rl.envs.atari_games", raising=False)
    assert main(["train", "algo=a2c", "env=breakout", "total_steps=100"]) == 1
    message = capsys.readouterr().err
    assert "env=breakout" in message and 'pip install "accel_rl[atari]"' in message
    assert not list(tmp_path.iterdir())


# ---- what is installed ---------------------------------------------------------------------------


def names_in(texts: list[str]) -> set[str]:
    """Packages by their canonical names, those of our own extras in place of accel_rl."""
    names: set[str] = set()
    for each in map(Requirement, texts):
        if each.name.replace("-", "_") == "accel_rl":
            names.update(*(names_in(EXTRAS[extra]) for extra in each.extras))
        else:
            names.add(canonicalize_name(each.name))
    return names


def test_packages_without_extras_are_those_of_the_environment_above() -> None:
    assert names_in(PROJECT["dependencies"]) == set(BASE)


def test_extra_for_training_requires_each_package_that_its_commands_import() -> None:
    packages = {"PIL": "pillow", "cv2": "opencv-python-headless"}
    needed = {packages.get(name, name) for name in TRAINING_PACKAGES}
    needed.add("pygame-ce")  # of Gymnasium's environments
    assert names_in(EXTRAS["train"]) - set(BASE) == needed - set(BASE)


@pytest.mark.processes
@pytest.mark.slow
def test_wheel_has_the_package_and_nothing_else(tmp_path: Path) -> None:
    code = "import sys, hatchling.build; hatchling.build.build_wheel(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(path).namelist()
    folders = {"accel_rl", f"accel_rl-{__version__}.dist-info"}
    assert {name.partition("/")[0] for name in names} == folders
    assert "accel_rl/py.typed" in names
