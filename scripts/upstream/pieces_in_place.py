# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: prepared modules in place of the passes of the wheel.

The environment variable ``TVM_PIECES`` names the folder of the modules. The native passes are made
to fail, so that none of them does the work.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from tvm.relax.distributed import transform
from tvm.relax.distributed.transform import _ffi_api

REPLACED = {
    "LegalizeRedistribute": "legalize_redistribute",
    "PropagateSharding": "propagate_sharding",
}


def _refuse(*_: Any) -> None:
    raise AssertionError("a native pass was called")


def pytest_configure() -> None:
    """Import the modules as a part of TVM, and replace the passes."""
    transform.__path__.append(os.environ["TVM_PIECES"])
    for name, module in REPLACED.items():
        if not hasattr(_ffi_api, name):
            raise RuntimeError(f"TVM has no native {name}: nothing would be replaced")
        setattr(_ffi_api, name, _refuse)
        loaded = importlib.import_module(f"tvm.relax.distributed.transform.{module}")
        setattr(transform, name, getattr(loaded, name))
