# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Register errors and ops with TVM: at the import of the package, or when the command runs.

The command checks its options first, and the import of TVM takes most of a second.
"""

from __future__ import annotations

import functools
import sys
from contextlib import nullcontext


def is_awaited() -> bool:
    """Return whether the command runs, which calls :func:`register` by itself."""
    return getattr(sys.modules.get("tvm_distir_command"), "registers", False)


@functools.cache
def register() -> None:
    """Register errors and ops, once. TVM's runtime-only library knows no ops."""
    from tvm_distir.core.rewriting import gc_paused

    awaited = is_awaited()
    if awaited:
        from tvm_distir_command import torch_hidden
    # Of TVM a hundred thousand objects stay.
    with gc_paused(permanent=awaited), torch_hidden() if awaited else nullcontext():
        from tvm_distir.support import is_runtime_only, register_with_ffi

        register_with_ffi()
        if is_runtime_only():
            return
        from tvm_distir.core.ir.operators import register_ops
        from tvm_distir.core.ops import register_inference
        from tvm_distir.core.rewriting import separate_scopes
        from tvm_distir.execution import register_legalization

        separate_scopes()
        register_ops()
        register_inference()
        register_legalization()
