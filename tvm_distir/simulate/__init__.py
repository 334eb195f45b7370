# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Predicts time, memory and traffic of a ``Program`` on a ``System``."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from .result import Collective, DeviceResult, Event, FunctionTime, Lane, OpTime, Result
from .simulator import simulate

__all__ = [
    "Collective",
    "DeviceResult",
    "Event",
    "FunctionTime",
    "Lane",
    "OpTime",
    "Result",
    "simulate",
]


class _Callable(ModuleType):
    """Lets ``tvm_distir.simulate`` be called.

    The name means the function, but Python binds the folder to it whenever someone imports from
    here; so the folder does what the function does.
    """

    def __call__(self, *args: Any, **options: Any) -> Any:
        return simulate(*args, **options)


sys.modules[__name__].__class__ = _Callable
