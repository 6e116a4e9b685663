"""The samplers' worker processes behind Gymnasium's interface for vector environments."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from accel_rl.envs.atari_config import AtariConfig
from accel_rl.envs.base import EnvFactory
from accel_rl.envs.clipped import beyond_bounds
from accel_rl.envs.reach import Request, call, get_attr, set_attr, set_options
from accel_rl.options import check_seed
from accel_rl.rollout import RolloutSpec
from accel_rl.samplers.base import Autoreset, SamplerConfig, SamplerError, check_memory
from accel_rl.samplers.block import LEAVE, Play
from accel_rl.samplers.layout import assign_columns, plan_workers
from accel_rl.samplers.local_pool import LocalPool, Pool
from accel_rl.samplers.make_block import check_autoreset
from accel_rl.samplers.orders import RESET
from accel_rl.samplers.pool import WorkerPool
from accel_rl.spaces import map_gymnasium, write_values
from accel_rl.vector.arguments import find_factory, find_mode, reset_orders

Array = NDArray[Any]
Results = tuple[Any, Array, Array, Array, dict[str, Any]]


class VectorState(NamedTuple):
    """The state of a `VectorEnv` after a reset or a step.

    Attributes:
        plays: of each environment.
        observation: ``[num_envs, ...]``, structs for a mapping.
        needs_reset: ``[num_envs]`` bool, where DISABLED mode waits for a reset.
    """

    plays: list[Play]
    observation: Array
    needs_reset: NDArray[np.bool_]


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, Array]):
    """Environments in worker processes, stepped as one `gymnasium.vector.VectorEnv`.

    ``step`` returns observations ``[num_envs, ...]``, rewards ``[num_envs]`` float64 with the
    precision of float32, ``terminated`` and ``truncated`` ``[num_envs]`` bool, and infos. Rewards
    are clipped if the environment clips them. Actions are those of ``single_action_space``,
    ``[num_envs, ...]``; an action outside its bounds is an error. Values of a ``Dict`` are dicts of
    arrays, values of a ``Tuple`` tuples of arrays.

    Infos hold ``raw_reward`` (float64, reward of the task) and ``episode_ended`` (bool, game over
    or truncated, and not just a lost life), with the masks ``_raw_reward`` and ``_episode_ended``.
    They also hold the numbers that ``info_keys`` names, each where its mask is True; where a step
    has reset an environment, the numbers are those of the reset.

    A step that is terminated or truncated ends an episode. The autoreset mode says when the next
    one begins:

    - NEXT_STEP: in the next step, which ignores the action and returns the first observation with
      reward 0 and no flag. The masks of ``raw_reward`` and ``episode_ended`` are False.
    - SAME_STEP: in the same step, which returns the first observation. ``infos["final_obs"]`` has
      the last one and ``infos["final_info"]`` its infos, where ``_final_obs`` and ``_final_info``
      are True.
    - DISABLED: when `reset` is called with ``options={"reset_mask": mask}``. A step before that is
      an error.

    A lost life, if lives count as episodes, is terminated while the game continues. The observation
    of that step is the first of the next life. The step is treated like any other end, without a
    reset: in NEXT_STEP the next step takes no action and returns that observation again; in
    SAME_STEP ``final_obs`` is that observation; in DISABLED a reset with a mask continues the game
    and returns it again. A reset without a mask, or with a seed, always starts a new game.

    With several groups, `send` and `recv` let one group simulate while you choose the actions of
    another::

        observation, _ = env.reset()
        for group in env.groups:
            env.send(policy(observation[group]))
        while True:
            observation, reward, terminated, truncated, infos = env.recv()  # of infos["env_id"]
            env.send(policy(observation))

    Workers start with the first `reset`. If a worker dies or hangs, or its environment raises, a
    `WorkerError` names it, and the vector environment is closed.

    Args:
        env: an Atari game (``breakout``), ``catch``, a Gymnasium id, ``module:function``, or a
            function that returns a `gymnasium.Env`, an `Environment` or a `Batched`. The
            environments of a `Batched` must be able to reset as ``autoreset_mode`` says.
        num_envs: number of environments.
        num_workers: number of worker processes. None: one for each core. 0: environments are in
            this process, on any system; options that place workers or limit their time have no
            effect.
        num_groups: number of equal groups that `send` and `recv` take by turns; `step` takes all.
        autoreset_mode: an `AutoresetMode` or its value.
        atari: how Atari games are played.
        info_keys: numbers in the ``info`` of a Gymnasium environment to put into infos. An
            `Environment` names its own in its spec.
        seed: seed of resets without a seed; None: a different seed in each program run.
            ``reset(seed=...)`` seeds a Gymnasium environment as Gymnasium's vector environments do.
        cpus: CPUs to which workers may be pinned; None: all that this process may use.
        affinity: ``auto``: workers are pinned to cores. ``off``: they are not pinned, for several
            programs at once without ``cpus`` of their own.
        step_timeout_seconds: seconds after which a group that has not finished its step counts as
            hung. Resets within the step count towards it. A start or a `reset` may take 240 s
            more.
        copy: True: observations are arrays of your own. False: they are read-only views of shared
            memory, valid until the group's next `send`, `step` or `reset`.

    Attributes:
        groups: slice of the environments of each group.
        env_spec: spaces of one environment, which gets floats beyond their bounds as they are.
        first_action: the first action of a ``Discrete`` space.
        plan: cores of each worker; None if all environments are in this process.
        info_keys: names of the numbers in infos.

    Raises:
        ValueError: an argument is out of range or does not fit the others, or the environment
            cannot be made.
        SamplerError: this system is not Linux.
    """

    closed = True  # until there is something to close

    def __init__(
        self,
        env: str | Callable[[], Any],
        num_envs: int,
        *,
        num_workers: int | None = None,
        num_groups: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        atari: AtariConfig | None = None,
        info_keys: Sequence[str] = (),
        seed: int | None = None,
        cpus: list[int] | None = None,
        affinity: Literal["auto", "off"] = "auto",
        step_timeout_seconds: float = 60.0,
        copy: bool = True,
    ) -> None:
        mode = find_mode(autoreset_mode, affinity)
        config = SamplerConfig(
            num_envs=num_envs,
            horizon=1,
            num_groups=num_groups,
            num_workers=num_workers,
            affinity=affinity,
            step_timeout_seconds=step_timeout_seconds,
        )
        self.plan = None if num_workers == 0 else plan_workers(config, cpus)
        factory, kind = find_factory(env, atari, info_keys)
        check_autoreset(kind.spec.name, kind.own_reset, mode.value, rests=kind.rests)
        self._own_reset = kind.own_reset
        spec = config.rollout_spec(kind.spec)
        check_memory(spec)  # the spaces below take as much
        self.info_keys = kind.spec.info_keys
        self.num_envs = num_envs
        self.env_spec = replace(kind.spec, action=beyond_bounds(kind.spec.action))
        self.first_action = kind.first_action
        self.single_action_space = kind.action_space
        self.single_observation_space = kind.observation_space
        self._is_gymnasium = kind.is_gymnasium
        if kind.is_gymnasium:
            self.render_mode = kind.render_mode
            self.spec = kind.gymnasium_spec
        self.metadata = {**self.metadata, **kind.metadata, "autoreset_mode": mode}
        self.autoreset_mode = mode
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._pool = self._make_pool(factory, spec, config, seed)
        self.groups = self._pool.columns
        self._numbers, self._rows = range(len(self.groups)), [0] * len(self.groups)
        self._all = slice(0, num_envs)
        self.copy = copy
        # Groups in the order in which they were received and sent.
        self._to_send, self._to_recv = deque[int](), deque[int]()
        self._is_started = self._was_reset = False
        self._needs_reset = np.zeros(num_envs, np.bool_)
        self.closed = False

    def _make_pool(
        self, factory: EnvFactory, spec: RolloutSpec, config: SamplerConfig, seed: int | None
    ) -> Pool:
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        check_seed(seed)
        mode = Autoreset(self.autoreset_mode.value)
        if self.plan is None:
            return LocalPool(factory, spec, config, seed, config.num_groups, mode)
        cores = self.plan.worker_cpus
        slices = assign_columns(config, len(cores))
        return WorkerPool(factory, spec, config, seed, cores, slices, autoreset=mode)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes. Results that `recv` has not returned are dropped.

        Args:
            seed: environment ``i`` gets ``seed + i``, or ``seed[i]``. None: its randomness
                continues.
            options: ``{"reset_mask": mask}``, a ``[num_envs]`` bool array, resets only the
                environments where it is True; the others return their last observation again. All
                other options are passed to the resets of Gymnasium environments.

        Returns:
            Observations ``[num_envs, ...]``, and infos with the numbers that ``info_keys`` names.

        Raises:
            ValueError: the seed or the options are invalid.
            SamplerError: the vector environment is closed, or a mask is given before all results
                were received.
            WorkerError: a worker failed, or took longer than 240 s + ``step_timeout_seconds``.
        """
        more = dict(options) if isinstance(options, dict) else {}
        more.pop("reset_mask", None)
        return self.reset_each(seed, options, [more] * self.num_envs)

    def reset_each(
        self,
        seed: int | Sequence[int | None] | None,
        options: dict[str, Any] | None,
        own_options: Sequence[dict[str, Any]],
    ) -> tuple[Any, dict[str, Any]]:
        """Reset as `reset` does, with options of its own for each environment."""
        self._check()
        orders = reset_orders(self.num_envs, seed, options, self._own_reset)
        if any(own_options) and not self._is_gymnasium:
            names = sorted({name for each in own_options for name in each})
            raise ValueError(
                f"options has {names}, and environment {self.env_spec.name} is none of "
                f"Gymnasium's, whose reset takes options; leave them out"
            )
        is_left = orders == LEAVE
        if is_left.any() and not self._was_reset:
            raise ValueError("reset_mask leaves environments out; the first reset must take all")
        if is_left.any():
            self._check(whole="a reset with a mask")
        try:
            self._start()
            given = {i: (own,) for i, own in enumerate(own_options) if own and not is_left[i]}
            if given:
                self._pool.call(Request(set_options, given))
            self._pool.arrays.reset_order[:] = orders
            self._pool.send(self._numbers, self._rows, RESET)
            self._to_recv.extend(self._numbers)
            self._recv_all()
        except BaseException:
            self.close()
            raise
        self._was_reset = True
        self._needs_reset &= is_left
        infos: dict[str, Any] = {}
        self._add_info_values(infos, self._all, resets=~is_left)
        return self._observation(self._all), infos

    def step(self, actions: Any) -> Results:
        """Take one step of every environment.

        Args:
            actions: ``[num_envs, ...]``.

        Returns:
            Observations, rewards, ``terminated``, ``truncated`` and infos.

        Raises:
            ValueError: the actions are invalid.
            SamplerError: the vector environment is closed, not reset, or between `send` and `recv`.
            WorkerError: a worker failed, and the vector environment was closed.
        """
        self._check(self._all, "step()")
        out = self._pool.arrays.rollout.action[0]
        write_values(self.env_spec.action, actions, out, first=self.first_action)
        try:
            self._pool.send(self._numbers, self._rows)
            for group in self._numbers:
                self._pool.recv((group,))
            self._to_send = deque(self._numbers)
            return self._results(self._all)
        except BaseException:
            self.close()
            raise

    def send(self, actions: Any) -> None:
        """Send actions to a group: after a reset the first one, later the one received longest ago.

        Args:
            actions: ``[n, ...]`` for the environments of the group.

        Raises:
            ValueError: the actions are invalid.
            SamplerError: the vector environment is closed or not reset, or all groups have been
                sent.
        """
        self._check()
        if not self._to_send and self._to_recv:
            raise SamplerError("all groups have been sent; call recv() first")
        columns = self.groups[self._to_send[0]] if self._to_send else self._all
        self._check(columns)
        out = self._pool.arrays.rollout.action[0, columns]
        write_values(self.env_spec.action, actions, out, first=self.first_action)
        try:
            group = self._to_send.popleft()
            self._pool.send((group,), (0,))
            self._to_recv.append(group)
        except BaseException:
            self.close()
            raise

    def recv(self, *, first_ready: bool = False) -> Results:
        """Wait for a group that was sent, and return its results.

        Args:
            first_ready: False: wait for the group that was sent first, so that runs are repeatable.
                True: take the first group that is ready, so that no group waits for a slower one.

        Returns:
            The results of `step` for this group. ``infos["env_id"]``, ``[n]`` int64, has the
            numbers of its environments.

        Raises:
            SamplerError: the vector environment is closed, or nothing has been sent.
            WorkerError: a worker failed, and the vector environment was closed.
        """
        self._check()
        if not self._to_recv:
            raise SamplerError("nothing has been sent; call send() first")
        try:
            groups = self._to_recv if first_ready else (self._to_recv[0],)
            (group,) = self._pool.recv(groups)
            self._to_recv.remove(group)
            self._to_send.append(group)
            columns = self.groups[group]
            results = self._results(columns)
            infos = results[-1]
            infos["env_id"] = np.arange(columns.start, columns.stop)
            infos["_env_id"] = np.ones(len(infos["env_id"]), np.bool_)
            return results
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        """Start the environments, if that has not been done, and wait for what was sent."""
        if not self._is_started:
            self._pool.start(range(len(self.groups)), row=1)
            self._to_recv.extend(range(len(self.groups)))
            self._is_started = True
        self._recv_all()

    def reach(self, function: Callable[..., Any] | str, arguments: dict[int, Any]) -> list[Any]:
        """Return what a function returns in single environments, see `Request`.

        Raises:
            AttributeError: an environment has no such attribute.
            TypeError: arguments or results cannot be sent to another process, or environments
                cannot tell their state.
            RuntimeError: it failed in an environment, which goes on.
            SamplerError: closed, or not all that was sent has been received.
        """
        self._check(whole="a call of single environments" if self._is_started else "")
        try:
            self._start()
            answers = self._pool.call(Request(function, arguments))
        except TypeError:
            raise
        except BaseException:
            self.close()
            raise
        for i, answer in sorted(answers.items()):
            if answer.error:
                kinds = {"AttributeError": AttributeError, "TypeError": TypeError}
                kind = kinds.get(answer.error, RuntimeError)
                prefix = "" if kind is not RuntimeError else f"{answer.error}: "
                raise kind(f"environment {i} ({self.env_spec.name}): {prefix}{answer.message}")
        return [answers[i].value for i in arguments]

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment or its wrappers, ``[num_envs]``.

        Args:
            name: name of the attribute.

        Raises:
            AttributeError: there is no such attribute.
            TypeError: its value cannot be sent to this process.
        """
        return tuple(self.reach(get_attr, dict.fromkeys(range(self.num_envs), (name,))))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment.

        Args:
            name: name of the attribute.
            values: a list of ``num_envs`` values, or one value for all.

        Raises:
            ValueError: the list has another length.
        """
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(
                f"values has {len(values)} entries for num_envs={self.num_envs}; give one for each "
                f"environment"
            )
        self.reach(set_attr, {i: (name, value) for i, value in enumerate(values)})

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment and return the results, ``[num_envs]``.

        Args:
            name: name of the method.
            args: positional arguments.
            kwargs: keyword arguments.

        Raises:
            AttributeError: there is no such method.
            RuntimeError: the method raised in an environment.
        """
        arguments = dict.fromkeys(range(self.num_envs), (name, args, kwargs))
        return tuple(self.reach(call, arguments))

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Copies of the random generators of the environments, ``[num_envs]``."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the environments' random generators, ``[num_envs]``."""
        return self.get_attr("np_random_seed")

    def render(self) -> tuple[Any, ...]:
        """Return what each environment renders."""
        return self.call("render")

    def get_state(self) -> VectorState:
        """Return the state after a reset or a step, for `set_state`.

        Raises:
            TypeError: the environments cannot tell their state.
            SamplerError: not reset.
        """
        self._check(slice(0))
        plays = self.reach("get_play", dict.fromkeys(range(self.num_envs), ()))
        observation = self._pool.arrays.rollout.observation[1].copy()
        return VectorState(plays, observation, self._needs_reset.copy())

    def set_state(self, state: VectorState) -> Any:
        """Go on from a state of this vector environment or of one like it; return observations.

        Raises:
            ValueError: the state is of other environments, or of another autoreset mode.
        """
        self._check()
        row = self._pool.arrays.rollout.observation[1]
        found = state.observation
        if found.shape != row.shape or found.dtype != row.dtype:
            raise ValueError(
                f"state has observations {found.dtype} {list(found.shape)}; here they are "
                f"{row.dtype} {list(row.shape)}: use a state of such environments"
            )
        mode, has_ended = self.autoreset_mode, any(play.is_idle for play in state.plays)
        if (has_ended and mode is not AutoresetMode.NEXT_STEP) or (
            state.needs_reset.any() and mode is not AutoresetMode.DISABLED
        ):
            raise ValueError(
                f"state has episodes that have ended, as another autoreset_mode than {mode.value} "
                f"leaves them; use a state of this mode, or one in which all episodes go on"
            )
        self.reach("set_play", {i: (play,) for i, play in enumerate(state.plays)})
        self._was_reset = True
        row[...] = state.observation
        self._needs_reset[:] = state.needs_reset
        return self._observation(self._all)

    def close_extras(self, **_: Any) -> None:
        """End the workers; `close` calls this."""
        self._pool.close()

    def __del__(self) -> None:
        if not self.closed:
            self.close()

    def _recv_all(self) -> None:
        """Wait for all groups that were sent. They may then be sent in the order of numbers."""
        while self._to_recv:
            self._pool.recv((self._to_recv[0],))
            self._to_recv.popleft()
        self._to_send = deque(self._numbers)

    def _observation(self, columns: slice) -> Any:
        view = self._pool.arrays.rollout.observation[1, columns]
        return map_gymnasium(
            _copy if self.copy else _read_only, self.single_observation_space, view
        )

    def _results(self, columns: slice) -> Results:
        rollout = self._pool.arrays.rollout
        # No loops or helpers: this process has just slept, and code that is not in the processor's
        # caches takes several times as long.
        reward = rollout.reward[0, columns].astype(np.float64)
        terminated = rollout.terminated[0, columns].copy()
        truncated = rollout.truncated[0, columns].copy()
        was_stepped = rollout.valid[0, columns].copy()
        infos: dict[str, Any] = {
            "raw_reward": rollout.raw_reward[0, columns].astype(np.float64),
            "_raw_reward": was_stepped,
            "episode_ended": rollout.episode_ended[0, columns].copy(),
            "_episode_ended": was_stepped.copy(),
        }
        done = terminated | truncated
        is_same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        if self.info_keys:
            if is_same_step:
                self._add_info_values(infos, columns, ~done, done)
            else:
                self._add_info_values(infos, columns, was_stepped, ~was_stepped)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._needs_reset[columns] = done
        elif is_same_step and done.any():
            final_observation = np.full(len(done), None, object)
            for i in np.flatnonzero(done):
                final = rollout.final_observation[0, columns.start + i, ...]
                final_observation[i] = map_gymnasium(_copy, self.single_observation_space, final)
            infos["final_obs"], infos["_final_obs"] = final_observation, done
            final_info = _where(done, infos)
            self._add_info_values(final_info, columns, done)
            infos["final_info"], infos["_final_info"] = final_info, done.copy()
        observation = rollout.observation[1, columns]
        if self.copy and observation.dtype.names is None:
            return observation.copy(), reward, terminated, truncated, infos
        return self._observation(columns), reward, terminated, truncated, infos

    def _add_info_values(
        self,
        infos: dict[str, Any],
        columns: slice,
        steps: NDArray[np.bool_] | None = None,
        resets: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add numbers of ``info_keys``, of a step where ``steps``, of a reset where ``resets``."""
        rollout, reset_info = self._pool.arrays.rollout, self._pool.arrays.reset_info[columns]
        for k, key in enumerate(self.info_keys):
            values = rollout.info[0, columns, k].astype(np.float64)
            mask = np.zeros(len(values), np.bool_) if steps is None else steps
            if resets is not None and resets.any():
                values[resets] = reset_info[resets, k]
                mask = mask | resets
            is_told = mask & ~np.isnan(values)
            if is_told.any():
                values[~is_told] = 0.0
                infos[key], infos[f"_{key}"] = values, is_told

    def _check(self, columns: slice | None = None, whole: str = "") -> None:
        """Raise SamplerError if this is closed or belongs to another process.

        Args:
            columns: environments to step, which must have been reset.
            whole: what is to be done to all groups, none of which may be left to receive.
        """
        if self.closed:
            raise SamplerError("this vector environment is closed; make another one")
        self._pool.check_open()
        if whole and self._to_recv:
            raise SamplerError(
                f"{whole} concerns all groups, and some have been sent; call recv() for these first"
            )
        if columns is None:
            return
        if not self._was_reset:
            raise SamplerError("this vector environment has not been reset; call reset() first")
        if np.count_nonzero(self._needs_reset[columns]):  # `any` takes six times as long
            indices = columns.start + np.flatnonzero(self._needs_reset[columns])
            raise SamplerError(
                f"the episodes of environments {indices.tolist()} have ended, and autoreset_mode "
                f"is DISABLED; call reset(options={{'reset_mask': terminated | truncated}}) first"
            )


def _copy(_: Any, array: Array) -> Any:
    return array.copy()[()]


def _read_only(_: Any, array: Array) -> Array:
    view = array[...]
    view.flags.writeable = False
    return view


def _where(mask: NDArray[np.bool_], infos: dict[str, Any]) -> dict[str, Any]:
    """Return our own infos of the step, only for the environments in ``mask``."""
    return {
        "raw_reward": np.where(mask, infos["raw_reward"], 0.0),
        "_raw_reward": mask.copy(),
        "episode_ended": infos["episode_ended"] & mask,
        "_episode_ended": mask.copy(),
    }
