#!/usr/bin/env bash
# carry.sh [LEANRL_CHECKOUT]: gathers in .carry/ what a GPU machine without a network lacks (CPython 3.12, x86-64): wheels,
# EnvPool's Atari part with two games, and what LeanRL's PPO needs, if its checkout is given. unpack.sh unpacks it there.
set -euo pipefail
cd "$(dirname "$0")/../.."
leanrl=${1:-}
rm -rf .carry && mkdir .carry
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tags=(--python-version 3.12 --implementation cp)
for platform in 2_28 2_27 2_17; do tags+=(--platform "manylinux_${platform}_x86_64"); done
tags+=(--platform manylinux2014_x86_64)
get() { python3 -m pip download --quiet --no-deps --only-binary=:all: "${tags[@]}" --dest "$@"; }

get .carry ale-py==0.12.1 gymnasium==1.4.0 farama-notifications cloudpickle omegaconf==2.4.0
get .carry dm-env dm-tree optree
get "$scratch" envpool==0.9.0
(
    cd "$scratch"
    python3 -m zipfile -e envpool-*.whl whole
    mkdir -p site/envpool
    cp -r whole/envpool/{__init__.py,registration.py,python,atari} site/envpool
    echo 'import envpool.atari.registration' > site/envpool/entry.py
    find site/envpool/atari -name '*.bin' ! -name breakout.bin ! -name pong.bin -delete
)
if [ -n "$leanrl" ]; then
    get .carry tensordict pyvers tyro docstring-parser shtab
    python3 -m pip wheel --quiet --no-deps --wheel-dir .carry gym==0.23.1
    mkdir -p "$scratch/site/leanrl/leanrl" "$scratch/site/torchrl"
    cp "$leanrl/leanrl/ppo_atari_envpool_torchcompile.py" "$scratch/site/leanrl/leanrl"
    touch "$scratch/site/torchrl/__init__.py"
    cat > "$scratch/site/torchrl/_utils.py" << 'STUB'  # all that the script uses of TorchRL
class timeit:
    def __init__(self, name): pass
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def __call__(self, function): return function
    @staticmethod
    def print(*arguments, **named): pass
    @staticmethod
    def erase(): pass
STUB
fi
tar cJf .carry/site.txz -C "$scratch/site" .
du -sh .carry
