# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Repair ``tvm.runtime.disco``, which ``import tvm`` may leave partially initialized."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tvm_distir.support.tvm.private_names import DISCO_FUNCTIONS, has_threaded_session


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
        sys.modules.pop(DISCO_FUNCTIONS, None)
        try:
            disco = importlib.import_module("tvm.runtime.disco")
        except (ImportError, AttributeError, RuntimeError, ValueError):
            return None
    tvm.runtime.disco = disco
    return None if not has_threaded_session(disco) else disco
