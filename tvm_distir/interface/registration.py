# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Register errors and ops with TVM: at the import of the package, or when the command runs.

The command checks its options first, and the import of TVM takes most of a second.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def is_awaited() -> bool:
    """Return whether the command runs, which calls :func:`register` by itself."""
    return getattr(sys.modules.get("tvm_distir_command"), "registers", False)


@functools.cache
def register() -> None:
    """Register errors and ops, once. TVM's runtime-only library knows no ops."""
    from tvm_distir.core.rewriting import gc_paused

    # Of TVM a hundred thousand objects stay.
    with gc_paused(permanent=is_awaited()), _torch_hidden():
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


class _NoTorch:
    """Finder of modules that finds no PyTorch in the thread that made it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "torch" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def _torch_hidden() -> Iterator[None]:
    """Hide PyTorch from TVM's FFI, which imports it wherever it is installed, in 2 s of CPU.

    PyTorch can be imported afterwards, and exchanges tensors with TVM without that import.
    """
    finder: Any = _NoTorch()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
