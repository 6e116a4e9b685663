"""An extension of griffe: the API pages show the default value of an option, not its metadata."""

from typing import Any

import griffe


class PlainDefaults(griffe.Extension):
    """Replaces ``option(default, ...)``, the value of a field, by ``default``."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        call = attr.value
        if isinstance(call, griffe.ExprCall) and str(call.function) == "option":
            attr.value = call.arguments[0]
