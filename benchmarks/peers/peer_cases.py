"""What `peers` measures: its options, who the peers are, and the cases that follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from accel_rl.models.image import A3C_NET, DQN_NET, NATURE_NET
from benchmarks.harness.interleave import Case
from benchmarks.speed.cases import train_case

WORK: dict[str, dict[str, Any]] = {
    "a2c": {"num_envs": 16, "horizon": 5},
    "ppo": {"num_envs": 8, "horizon": 256, "num_minibatches": 4, "num_epochs": 4},
    "dqn": {
        "num_envs": 8,
        "horizon": 4,  # where a peer updates once a rollout
        "batch_size": 32,
        "steps_per_update": 4,
        "buffer_size": 20_000,
        "learning_starts": 1_000,
        "epsilon": 0.1,
    },
    "ppo_mujoco": {"num_envs": 8, "horizon": 256, "num_minibatches": 32, "num_epochs": 10},
    "sac": {"num_envs": 1, "batch_size": 256, "buffer_size": 20_000, "learning_starts": 1_000},
}
"""What every peer does for a step: that of our presets, with a small replay that is soon filled."""

CONTROL = ("ppo_mujoco", "sac")
"""Those that are measured on `Options.task`, with networks of two layers, and not on a game."""

PRESET, NATURE, LAYERS_TWO = "preset", "nature", "two layers"
IMAGES = {PRESET: (104, 80), NATURE: (84, 84)}
OURS = {PRESET: "", NATURE: "model=nature observation_size=84x84"}
LAYERS = {
    ("a2c", PRESET): A3C_NET,
    ("ppo", PRESET): A3C_NET,
    ("dqn", PRESET): DQN_NET,
    **{(algo, NATURE): NATURE_NET for algo in ("a2c", "ppo", "dqn")},
}

VARIANTS = {
    "a2c": ("", "learners=2 num_workers=0", "precision=bfloat16"),
    "ppo": ("", "num_envs=64", "num_envs=64 precision=bfloat16"),
    "dqn": ("", "precision=bfloat16"),
    "ppo_mujoco": ("", "num_workers=none", "learners=2"),
    "sac": ("", "num_envs=8", "num_envs=8 num_groups=2 num_workers=none"),
}
AS_PEERS = {  # as `WORK` has it
    "dqn": "learning_starts=1000 buffer_size=20000",
    "ppo_mujoco": "num_envs=8",
    "sac": "num_envs=1 num_groups=1 num_workers=0 learning_starts=1000 buffer_size=20000",
}


class Peer(NamedTuple):
    """``packages``: to be importable."""

    script: str
    packages: str
    algos: tuple[str, ...]
    networks: tuple[str, ...]
    collection: str | None = None
    """the option that names the directory of its scripts"""


PEERS = {
    "sb3": Peer(
        "peers/sb3_training.py",
        "stable_baselines3, ale_py",
        tuple(WORK),
        (PRESET, NATURE, LAYERS_TWO),
    ),
    "torchrl": Peer(
        "peers/torchrl_training.py",
        "torchrl, gymnasium, ale_py, cv2",
        ("a2c", "ppo", "dqn"),
        (PRESET,),
    ),
    "cleanrl": Peer(
        "peers/script_training.py",
        "torch, tyro, gymnasium, stable_baselines3",
        ("ppo", "dqn", "ppo_mujoco", "sac"),
        (NATURE, LAYERS_TWO),
        "cleanrl",
    ),
    "cleanrl_envpool": Peer(
        "peers/script_training.py", "torch, tyro, gym, envpool", ("ppo",), (NATURE,), "cleanrl"
    ),
    "leanrl": Peer(
        "peers/script_training.py",
        "torch, tyro, gym, envpool, tensordict, torchrl",
        ("ppo",),
        (NATURE,),
        "leanrl",
    ),
}

SCRIPTS = {
    ("cleanrl", "ppo"): "cleanrl/ppo_atari.py",
    ("cleanrl", "dqn"): "cleanrl/dqn_atari.py",
    ("cleanrl", "ppo_mujoco"): "cleanrl/ppo_continuous_action.py",
    ("cleanrl", "sac"): "cleanrl/sac_continuous_action.py",
    ("cleanrl_envpool", "ppo"): "cleanrl/ppo_atari_envpool.py",
    ("leanrl", "ppo"): "leanrl/ppo_atari_envpool_torchcompile.py",
}
"""Files of the collections, in their directories."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    algos: tuple[str, ...] = ("a2c", "ppo", "dqn")
    """whose training is measured, each in an interleaved run of its own: a2c, ppo, dqn,
    ppo_mujoco, sac"""
    game: str = "breakout"
    """Atari game"""
    task: str = "HalfCheetah-v4"
    """Gymnasium's MuJoCo task, of ppo_mujoco and sac"""
    device: str = "cpu"
    """where networks are: cpu or cuda"""
    networks: tuple[str, ...] = (PRESET, NATURE)
    """preset: our preset's network and images, for peers that take them; nature: Mnih et al.
    2015 at 84 x 84, the peers' own"""
    variants: tuple[str, ...] | None = None
    """of our training: options as on its command line, several separated by blanks; null: the
    preset, and what makes it faster"""
    peers: tuple[str, ...] = tuple(PEERS)
    """who stands beside it, where installed"""
    peer_python: str | None = None
    """interpreters that have the peers, if this one has not; several separated as in PATH, and
    the first that has a peer runs it"""
    cleanrl: str | None = None
    """directory of a checkout of CleanRL"""
    leanrl: str | None = None
    """directory of a checkout of LeanRL"""
    peer_threads: tuple[int, ...] = ()
    """of torch in the peers; empty: 1, and one a core"""
    peer_malloc: tuple[str, ...] = ("default", "tuned")
    """of the C library in the peers: default, or tuned as in our training"""
    rounds: int = 5
    """times that everything is measured"""
    seconds: float = 5.0
    """of one measurement, after a short warm-up, and at least one rollout with its updates"""
    seed: int = 0
    """of games, actions and weights"""
    out: str = "build/peers"
    """where to write, without the ending"""

    def __post_init__(self) -> None:
        known = {
            "algos": WORK,
            "networks": IMAGES,
            "peers": PEERS,
            "peer_malloc": ("default", "tuned"),
        }
        for name, allowed in known.items():
            for value in getattr(self, name):
                if value not in allowed:
                    raise ValueError(f"{name} has {value!r}; it takes {', '.join(allowed)}")
        for name in ("cleanrl", "leanrl"):
            folder = getattr(self, name)
            if folder is not None and not (Path(folder) / name).is_dir():
                raise ValueError(
                    f"{name} is {folder!r}, which has no directory {name!r} of scripts; it takes "
                    "the directory of a checkout"
                )


def make_cases(
    options: Options, algo: str, cores: list[list[int]], interpreters: dict[str, str]
) -> list[Case]:
    """Our variants, then every setting of the peers; ``interpreters`` as `find_peers` gives them.

    A row has its ``part`` (accel_rl, or the peer), ``algo``, ``network`` and ``variant``.
    """
    cases = []
    common = {
        "cpus": sorted(cpu for core in cores for cpu in core),
        "seed": options.seed,
        "device": options.device,
    }
    for network in (LAYERS_TWO,) if algo in CONTROL else options.networks:
        for variant in VARIANTS[algo] if options.variants is None else options.variants:
            env = options.task if algo in CONTROL else options.game
            words = [f"algo={algo}", f"env={env}", f"device={options.device}"]
            words += [f"seed={options.seed}", *OURS.get(network, "").split()]
            words += [*AS_PEERS.get(algo, "").split(), *variant.split()]
            training = dict(word.split("=", 1) for word in words)  # a variant's word counts
            spec = common | {"malloc": "tuned"}
            spec["options"] = [f"{name}={value}" for name, value in training.items()]
            row = {"part": "accel_rl", "algo": algo, "network": network, "variant": variant}
            cases.append(train_case(_name(row), spec, row))
        for peer, python in interpreters.items():
            if algo in PEERS[peer].algos and network in PEERS[peer].networks:
                specs = _peer_specs(options, peer, algo, network, len(cores))
                for variant, spec in specs:
                    row = {"part": peer, "algo": algo, "network": network, "variant": variant}
                    script = PEERS[peer].script
                    cases.append(Case(_name(row), script, (common | spec,), row, python))
    return cases


def _name(row: dict[str, Any]) -> str:
    return " ".join(filter(None, (row["algo"], row["network"], row["part"], row["variant"])))


def _peer_specs(
    options: Options, peer: str, algo: str, network: str, num_cores: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A peer's variants, each in words and as its child's specification."""
    spec: dict[str, Any] = {"algo": algo, "work": WORK[algo]}
    if algo in CONTROL:
        spec["task"] = options.task
    else:
        layers = LAYERS[algo, network]
        convs = [list(conv) for conv in layers.convs]
        image = {"image": IMAGES[network], "convs": convs, "hidden": layers.hidden}
        spec |= {"game": options.game, "network": image}
    if collection := PEERS[peer].collection:
        spec["script"] = str(Path(getattr(options, collection)) / SCRIPTS[peer, algo])
        spec["arguments"] = _arguments(options, peer, algo)
        steps = WORK[algo]["num_envs"] * WORK[algo].get("horizon", 1)
        spec["steps_per_iteration"] = steps if collection == "leanrl" else None
    threads = options.peer_threads or sorted({1, num_cores})
    for number in threads:
        for malloc in options.peer_malloc:
            words = f"{number} thread{'s' * (number > 1)}, malloc {malloc}"
            yield words, spec | {"torch_threads": number, "malloc": malloc}


def _arguments(options: Options, peer: str, algo: str) -> list[str]:
    """The command line of a script of CleanRL or LeanRL."""
    work = WORK[algo]
    game = "".join(part.capitalize() for part in options.game.split("_"))
    env_id = f"{game}NoFrameskip-v4" if peer == "cleanrl" else f"{game}-v5"
    if algo in CONTROL:
        env_id = options.task
    given: dict[str, Any] = {"env-id": env_id, "seed": options.seed, "total-timesteps": 10**9}
    if "num_epochs" in work:
        given |= {"num-envs": work["num_envs"], "num-steps": work["horizon"]}
        given |= {"num-minibatches": work["num_minibatches"], "update-epochs": work["num_epochs"]}
    else:
        given |= {"buffer-size": work["buffer_size"], "learning-starts": work["learning_starts"]}
        given |= {"batch-size": work["batch_size"]}
    if algo == "dqn":
        given |= {"train-frequency": work["steps_per_update"]}
        given |= {"start-e": work["epsilon"], "end-e": work["epsilon"]}
    switches = ["--cuda" if options.device == "cuda" else "--no-cuda"]
    if peer == "leanrl":
        switches += ["--compile", *(["--cudagraphs"] if options.device == "cuda" else [])]
    return [f"--{name}={value}" for name, value in given.items()] + switches
