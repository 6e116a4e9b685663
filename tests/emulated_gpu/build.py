"""Builds the emulated GPU into the path given, with g++, unless it is newer than its sources."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

HERE = Path(__file__).parent


def main(target: Path) -> None:
    sources = [HERE / "device.cpp", HERE / "order.h", HERE / "graph.h", Path(torch.__file__)]
    if target.exists() and target.stat().st_mtime > max(each.stat().st_mtime for each in sources):
        return
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
