# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tells TVM of our errors and ops: when the package is imported, or when the command gets to work.

The command looks at what it was asked for first, and TVM takes most of a second to import.
"""

from __future__ import annotations

import functools
import sys


def is_awaited() -> bool:
    """Whether the command runs, which calls :func:`register` by itself."""
    return getattr(sys.modules.get("tvm_distir_command"), "registers", False)


@functools.cache
def register() -> None:
    """Register errors and ops, once. TVM's runtime-only library knows no ops."""
    from tvm_distir.core import gc_paused

    with gc_paused():  # of TVM a hundred thousand objects stay
        from tvm.base import _RUNTIME_ONLY

        from tvm_distir.support import register_with_ffi

        register_with_ffi()
        if _RUNTIME_ONLY:
            return
        from tvm_distir.core import register_inference, register_ops
        from tvm_distir.execution import register_legalization

        register_ops()
        register_inference()
        register_legalization()
