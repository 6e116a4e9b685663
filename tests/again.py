"""Run the tests that failed once more, each alone, and name in build/flaky.txt those that pass."""

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
FLAKY = Path("build/flaky.txt")


def main(options: list[str]) -> int:
    """Return pytest's exit status: 0 if all of them pass now."""
    failed = _failed()
    if not failed:  # the session failed for another reason, which a second one would not mend
        return 1
    command = [sys.executable, "-m", "pytest", "--last-failed", "--maxfail=3", *options]
    status = subprocess.run([*command, "--last-failed-no-failures=none"]).returncode
    if flaky := failed - _failed():
        FLAKY.parent.mkdir(exist_ok=True)
        with FLAKY.open("a") as file:
            file.writelines(f"{name}\n" for name in sorted(flaky))
    return status


def _failed() -> set[str]:
    return set(json.loads(FAILED.read_text())) if FAILED.exists() else set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
