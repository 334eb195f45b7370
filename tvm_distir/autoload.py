# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The entry point ``tvm.backends``: called by ``import tvm`` in every process.

It must be quick and must not fail: Disco's worker processes run it too, and TVM turns an
exception into a warning. It repairs ``tvm.runtime.disco`` and registers the packed functions of
compiled level-5 code as stand-ins that load the real ones at their first call.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

CCL_PREFIX = "tvm_distir.ccl."
CCL_NAMES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "collective_permute",
    "local_slice",
    "partial",
    "axis_index",
    "exchange",
    "send",
    "recv",
)


def repair_disco() -> Any:
    """Return ``tvm.runtime.disco``, importing it again if ``import tvm`` left it None.

    TVM imports it before its runtime library is loaded, gives up, and leaves a half-made
    ``_ffi_api`` behind.

    Returns
    -------
    disco : module or None
        None where the Disco runtime is not part of the loaded TVM.
    """
    import tvm

    disco = sys.modules.get("tvm.runtime.disco")
    if disco is None or not hasattr(disco, "ThreadedSession"):
        sys.modules.pop("tvm.runtime.disco", None)
        sys.modules.pop("tvm.runtime.disco._ffi_api", None)
        try:
            disco = importlib.import_module("tvm.runtime.disco")
        except (ImportError, AttributeError, RuntimeError, ValueError):
            return None
    tvm.runtime.disco = disco
    if not hasattr(disco.session._ffi_api, "SessionThreaded"):
        return None
    return disco


def _stand_in(name: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        from .runtime import ccl

        ccl.register()
        return ccl.functions()[name](*args)

    return call


def autoload() -> None:
    """Do what every process that imports TVM needs."""
    import tvm_ffi

    repair_disco()
    for name in CCL_NAMES:
        if tvm_ffi.get_global_func(CCL_PREFIX + name, allow_missing=True) is None:
            tvm_ffi.register_global_func(CCL_PREFIX + name, _stand_in(name))
