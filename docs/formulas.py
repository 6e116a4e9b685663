"""A hook of mkdocs: the build turns blocks of mathematics (fences of ``math``) into MathML."""

from typing import Any

from latex2mathml.converter import convert


def on_config(config: Any) -> None:
    fence = {"name": "math", "class": "math", "format": formula}
    config["mdx_configs"]["pymdownx.superfences"] = {"custom_fences": [fence]}


def formula(source: str, *_: Any, **__: Any) -> str:
    """Return the HTML of a block of LaTeX."""
    return f'<div class="math">{convert(source, display="block")}</div>'
