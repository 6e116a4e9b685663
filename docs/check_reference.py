"""A hook of mkdocs: the build fails if the reference pages lack a name that a package exports."""

import importlib
import re
from pathlib import Path
from typing import Any

PACKAGES = ("accel_rl.agents", "accel_rl.algos", "accel_rl.envs", "accel_rl.models")
PACKAGES += ("accel_rl.parallel", "accel_rl.samplers", "accel_rl.vector")


def missing_names(docs: Path) -> list[str]:
    """Return the exported names that no page in ``docs/reference`` shows."""
    pages = "\n".join(page.read_text() for page in (docs / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    exported = {
        f"{each}.{name}" for each in PACKAGES for name in importlib.import_module(each).__all__
    }
    return sorted(exported - shown)


def on_pre_build(config: Any) -> None:
    if missing := missing_names(Path(config["docs_dir"])):
        raise SystemExit(f"docs/reference lacks {', '.join(missing)}: add a line '::: NAME'")
