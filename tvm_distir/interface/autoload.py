# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The entry point ``tvm.backends``: called by ``import tvm`` in every process.

It must be quick and must not fail: Disco's worker processes run it too, and TVM turns an
exception into a warning. It repairs ``tvm.runtime.disco`` and registers the packed functions of
compiled level-5 code: the collectives as stand-ins that load the real ones at their first call,
and the copies to the host's memory and back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvm_distir.core.ir.operators import (
    COLLECTIVES,
    HOST_PREFIX,
    LOCAL_OPS,
    PACKED_PREFIX,
    TRANSFERS,
)
from tvm_distir.support import repair_disco

if TYPE_CHECKING:
    import tvm_ffi

CCL_NAMES = (*COLLECTIVES, *LOCAL_OPS, *TRANSFERS)


def _stand_in(name: str) -> Callable[..., Any]:
    def call(*args: object) -> Any:
        from tvm_distir.execution.runtime.collectives import ccl

        ccl.register()
        return ccl.functions()[name](*args)

    return call


def _store(*tensors: tvm_ffi.Tensor) -> tvm_ffi.Tensor | list[tvm_ffi.Tensor]:
    """Copy tensors into the host's memory."""
    import tvm

    copies = [x.copyto(tvm.cpu()) for x in tensors]
    return copies[0] if len(copies) == 1 else copies


def _fetch(*tensors: tvm_ffi.Tensor) -> None:
    """Fill tensors of the device, the last half of the arguments, with those of the host."""
    count = len(tensors) // 2
    for x, out in zip(tensors[:count], tensors[count:], strict=True):
        x.copyto(out)


def autoload() -> None:
    """Do what every process that imports TVM needs."""
    import tvm_ffi

    repair_disco()
    for name in CCL_NAMES:
        if tvm_ffi.get_global_func(PACKED_PREFIX + name, allow_missing=True) is None:
            tvm_ffi.register_global_func(PACKED_PREFIX + name, _stand_in(name))
    for name, function in (("store", _store), ("fetch", _fetch)):
        tvm_ffi.register_global_func(HOST_PREFIX + name, function, override=True)
