"""Makes the path given a link to the emulated GPU, built with g++ once for these sources."""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "accel_rl", "emulated_gpu")


def main(target: Path) -> None:
    sources = [Path(__file__), *sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h")])]
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()[:16]
    built = CACHE / f"torch-{torch.__version__}-{sys.implementation.cache_tag}-{digest}.so"
    if not built.exists():
        build(built)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    target.symlink_to(built)


def build(target: Path) -> None:
    if shutil.which("g++") is None:
        sys.exit("there is no g++, with which the emulated GPU is built; install it")
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_suffix(f".{os.getpid()}")
    headers = [*include_paths(), sysconfig.get_path("include")]
    command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC"]
    command += ["-o", str(made), str(HERE / "device.cpp")]
    command += ["-DTORCH_EXTENSION_NAME=device", *(f"-isystem{each}" for each in headers)]
    command += [f"-L{each}" for each in library_paths()]
    command += ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    if subprocess.run(command, timeout=600).returncode != 0:
        sys.exit("the emulated GPU could not be built; see what g++ says above")
    made.rename(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
