"""Environments for the samplers' tests: one whose rollouts can be predicted, one that fails."""

import ctypes
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from counting_env import CountingEnv as CountingEnv
from counting_env import ToyEnv as ToyEnv

from accel_rl.envs import Catch
from accel_rl.envs.base import EnvSpec, StepResult
from accel_rl.spaces import Leaf, discrete


class ScriptedEnv:
    """Plays ``games`` in turn, a letter a step: . nothing, l lost life, t game over, c cut off,
    b both at once.

    Observation ``(game, life, step)``, games from 1, the rest from 0; after a lost life it is the
    next life's first. The reward is the action, the raw reward 100 more.
    """

    spec = EnvSpec(
        name="scripted",
        observation=Leaf((3,), np.dtype(np.int64)),
        action=discrete(4),
    )

    def __init__(self, *games: str) -> None:
        self.games, self.game = games, 0

    def seed(self, seed: np.random.SeedSequence) -> None:
        pass

    def reset(self, out: Any) -> None:
        self.letters = iter(self.games[self.game % len(self.games)])
        self.game += 1
        self.life = self.t = 0
        out[:] = (self.game, 0, 0)

    def step(self, action: int, out: Any) -> StepResult:
        letter = next(self.letters)
        self.t += 1
        if letter == "l":
            self.life, self.t = self.life + 1, 0
        out[:] = (self.game, self.life, self.t)
        return StepResult(
            reward=float(action),
            raw_reward=100.0 + action,
            terminated=letter in "ltb",
            truncated=letter in "cb",
            episode_ended=letter in "tcb",
        )

    def close(self) -> None:
        pass


class FaultyEnv(ToyEnv):
    """Goes wrong in the way ``fault`` when it has taken ``at_step`` steps in all.

    With ``marker``, a path, it does so only once in all: the first to make that file.
    """

    def __init__(self, fault: str, at_step: int = 3, marker: str | None = None) -> None:
        super().__init__()
        if fault == "init":
            raise RuntimeError("no simulator here")
        self.fault, self.at_step, self.marker, self.num_steps = fault, at_step, marker, 0

    def reset(self, out: Any) -> None:
        if self.fault == "reset":
            raise RuntimeError("cannot reset")
        if self.fault == "sleep in reset" and self.episode:
            time.sleep(600)
        super().reset(out)
        self.length, self.is_cut_off = 1_000, False

    def step(self, action: int, out: Any) -> StepResult:
        result = super().step(action, out)
        self.num_steps += 1
        if self.num_steps == self.at_step and self._is_first():
            if self.fault == "raise":
                raise RuntimeError("the simulator broke")
            if self.fault == "verbose":
                raise RuntimeError("é" * 100_000)
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "exit":
                os._exit(7)
            if self.fault == "sleep":
                time.sleep(600)
            if self.fault == "stuck":  # in C, holding the interpreter's lock
                ctypes.PyDLL(None).sleep(600)
            if self.fault == "nan":
                return result._replace(raw_reward=float("nan"))
            if self.fault == "nan reward":
                return result._replace(reward=float("nan"))
            if self.fault == "truncated alone":
                return result._replace(truncated=True)
            if self.fault == "ended alone":
                return result._replace(terminated=False, episode_ended=True)
            if self.fault == "no reward":
                return result._replace(reward=None, raw_reward=None)  # type: ignore[arg-type]
            if self.fault == "four":
                return result[:4]  # type: ignore[return-value]
        return result._replace(terminated=result.episode_ended)

    def _is_first(self) -> bool:
        if self.marker is None:
            return True
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended, reaped or not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class CloseHangs(ToyEnv):
    """In other processes than ``own``."""

    def __init__(self, own: int) -> None:
        super().__init__()
        self.own = own

    def close(self) -> None:
        if os.getpid() != self.own:
            time.sleep(600)


class Secretive(Catch):
    def get_state(self) -> dict[str, Any]:
        return {"rng": self._rng}


class SlowEnv(ToyEnv):
    def step(self, action: int, out: Any) -> StepResult:
        time.sleep(0.05)
        return super().step(action, out)


class Lives(ScriptedEnv):
    """Tells the life in which each step was taken."""

    spec = dataclasses.replace(ScriptedEnv.spec, info_keys=("life",))

    def step(self, action: int, out: Any) -> StepResult:
        life = self.life
        return super().step(action, out)._replace(info=(life,))


class BrokenEnv(CountingEnv):
    """Raises at its 30th step."""

    num_steps = 0

    def step(self, action: int, out: Any) -> StepResult:
        self.num_steps += 1
        if self.num_steps == 30:
            raise ArithmeticError("the simulator broke")
        return super().step(action, out)


def start_program(is_session: bool = False) -> Any:
    program = subprocess.Popen(["sleep", "600"], start_new_session=is_session)
    return program, lambda: (program.terminate(), program.wait())


def start_session() -> Any:
    return start_program(is_session=True)


def start_fork() -> Any:
    import multiprocessing  # which other workers need not load

    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    fork.start()
    return fork, lambda: (fork.terminate(), fork.join())


class HelpedEnv(ToyEnv):
    """Has a process of its own until it is closed, except in the process ``own``.

    There is a file in ``folder`` of the name of its pid.
    """

    def __init__(self, folder: str, own: int, start: Callable[[], Any] = start_program) -> None:
        super().__init__()
        self.end: Callable[[], Any] = lambda: None
        if os.getpid() != own:
            helper, self.end = start()
            Path(folder, str(helper.pid)).touch()

    def close(self) -> None:
        self.end()
