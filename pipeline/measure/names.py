"""Dotted paths, `module:attribute`, as settings give them."""

import importlib
from typing import Any

from templates.errors import InputError


def resolve(path: str) -> Any:
    """What a dotted path names; InputError where there is no such thing."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{path!r} cannot be loaded ({error}); write module:name") from None
