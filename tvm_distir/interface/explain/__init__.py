# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Explain the placement of a value, its reasons and alternatives, and draw its shards."""

from __future__ import annotations

import sys
from typing import Any

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


class _Callable(type(sys.modules[__name__])):  # type: ignore[misc]
    """The module, which can be called as its function ``explain``."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.explain(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
