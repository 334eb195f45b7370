# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Level-5 modules to the hierarchical ``Program`` that the simulator reads."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from .exporter import export
from .program import SCHEMA_VERSION, Entry, Function, Mesh, Op, Program, Value

__all__ = ["SCHEMA_VERSION", "Entry", "Function", "Mesh", "Op", "Program", "Value", "export"]


class _Callable(ModuleType):
    """Lets ``tvm_distir.export`` be called.

    The name means the function, but Python binds the folder to it whenever someone imports from
    here; so the folder does what the function does.
    """

    def __call__(self, *args: Any, **options: Any) -> Any:
        return export(*args, **options)


sys.modules[__name__].__class__ = _Callable
