# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Reach what TVM and its FFI keep private and the package needs, each in a function.

No other file of the package names an attribute of TVM that begins with an underscore; a test
walks the syntax trees. Modules of TVM are imported inside of the functions: its runtime-only
library has few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tvm_ffi
    from tvm import ir, relax
    from tvm.relax.distributed import DeviceMesh
    from tvm.runtime.disco import Session
    from tvm_ffi.core import TypeInfo


def is_runtime_only() -> bool:
    """Return whether the loaded library of TVM has the runtime and no compiler."""
    from tvm.base import _RUNTIME_ONLY

    return bool(_RUNTIME_ONLY)


def update_type(expr: ir.Expr, ty: ir.Type) -> None:
    """Give an expression of Relax, or a global variable, a type in place."""
    from tvm.relax.expr import _update_type

    _update_type(expr, ty)


def lookup_device_mesh(text: str) -> DeviceMesh:
    """Return the device mesh of a text such as ``mesh[0]`` in the module that is being parsed."""
    from tvm.relax.script.builder.distributed.ir import _lookup_device_mesh

    return _lookup_device_mesh(text)


def register_gradients() -> None:
    """Register TVM's gradients of its ops (``FPrimalGradient``)."""
    import tvm.relax.op._op_gradient  # noqa: F401


def builder_stack() -> Sequence[relax.BlockBuilder]:
    """Return the list of the block builders that are writing."""
    from tvm import relax

    stack: Sequence[relax.BlockBuilder] = relax.BlockBuilder._stack
    return stack


def replace_builder_stack(stack: object) -> None:
    """Replace the list of the block builders that are writing by an object that acts as one."""
    from tvm import relax

    relax.BlockBuilder._stack = stack


def begin_block(builder: relax.BlockBuilder, dataflow: bool) -> None:
    """Begin a binding block, of dataflow or plain, in a block builder."""
    if dataflow:
        builder._begin_dataflow_block()
    else:
        builder._begin_binding_block()


def end_block(builder: relax.BlockBuilder) -> relax.BindingBlock:
    """End the block that a block builder writes, and return it."""
    return builder._end_block()


def type_info(key: str) -> TypeInfo | None:
    """Return what the FFI knows of a node type; None for a key that no library registered.

    The result has ``fields``, each with ``name`` and ``ty``, and ``parent_type_info``.
    """
    from tvm_ffi import core

    if core._object_type_key_to_index(key) is None:
        return None
    return core._lookup_or_register_type_info_from_type_key(key)


def view_bits(tensor: tvm_ffi.Tensor, shape: Sequence[int], dtype: str) -> tvm_ffi.Tensor:
    """Return a tensor of another type over the memory of a tensor."""
    return tensor._create_view(shape, dtype)


def sync_workers(session: Session) -> None:
    """Wait until all workers of a Disco session have done what they were sent."""
    session._sync_all()


def has_threaded_session(disco: ModuleType) -> bool:
    """Return whether the library of TVM has Disco's session of threads."""
    return hasattr(disco.session._ffi_api, "SessionThreaded")


DISCO_FUNCTIONS = "tvm.runtime.disco._ffi_api"
"""Module of Disco's functions, which ``import tvm`` may leave partially initialized."""
