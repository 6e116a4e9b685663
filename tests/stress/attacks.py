"""Try each attack of ``by_files.py`` on a whole command, and read a key as another user.

    python tests/stress/attacks.py

Prints a table, and ends with 1 if an attack was not refused. A refusal takes at most a minute of
processor time and 300 MB more memory than the command without the attack. Linux only.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from by_files import ATTACKS, COMMANDS, SECRET, why_not_refused
from by_others import read_as_nobody

from accel_rl.__main__ import main as command
from accel_rl.system.signing import key_path

MOST_SECONDS = 60.0
MOST_MORE_MEMORY = 300.0
SMALL = ["env=catch", "num_workers=0", "horizon=5", "num_envs=2", "decorrelation_steps=0"]


def run(folder: Path, arguments: list[str]) -> tuple[int, str, float, float]:
    """Return exit code, errors, processor time and memory in MB of a command in ``folder``."""
    errors = folder.parent / f"{folder.name}-errors"
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.chdir(folder)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
            code = command(arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status, usage = os.wait4(pid, 0)
    said = errors.read_text(errors="replace")
    errors.unlink()
    seconds = usage.ru_utime + usage.ru_stime
    return os.waitstatus_to_exitcode(status), said, seconds, usage.ru_maxrss / 1024


def copy(folder: Path) -> Path:
    place = Path(tempfile.mkdtemp(dir=folder))
    shutil.copytree(folder / "whole", place / "run")
    return place


def main() -> int:
    num_failed = 0
    with tempfile.TemporaryDirectory(prefix="attacks-") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)  # so that another user is stopped by what accel_rl does
        os.environ |= {"XDG_STATE_HOME": str(folder / "state"), SECRET: "hunter2"}
        run(folder, [*SMALL, "total_steps=40", "run_dir=whole"])
        usual = {name: run(copy(folder), arguments)[-1] for name, arguments in COMMANDS.items()}
        print("| attack | met by | | answer |\n|---|---|---|---|")
        for name, (attack, met_by) in ATTACKS.items():
            place = copy(folder)
            attack(place / "run")
            code, said, seconds, memory = run(place, COMMANDS[met_by])
            failures = why_not_refused(said, code, {"run"}, place)
            failures += [f"took {seconds:.0f} s"] if seconds > MOST_SECONDS else []
            more = memory - usual[met_by]
            failures += [f"took {more:.0f} MB more"] if more > MOST_MORE_MEMORY else []
            num_failed += bool(failures)
            answer = "; ".join(failures) or " ".join(said.removeprefix("error: ").split())[:160]
            state = "**not refused**" if failures else "refused"
            print(f"| {name} | {met_by} | {state} | {answer} |", flush=True)
        if os.getuid() == 0 and (read := read_as_nobody([key_path()])):
            print(f"as nobody: {read}")
            num_failed += 1
    print(f"{len(ATTACKS)} attacks, {num_failed} not refused", file=sys.stderr)
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
