# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Writes the local form of a call: its computation on the shards of a device."""

from __future__ import annotations

from typing import Any

from tvm import ir

from tvm_distir.core.ops.padding import NO_PADDING
from tvm_distir.core.ops.registration import SAME_OP, Registration
from tvm_distir.core.rewriting.calls import TIR_CALLS

from .call import LocalCall
from .masking import padding_stays_zero, protect
from .tir import call_tir


def local_form(
    cx: LocalCall, registration: Registration | None, mod: ir.IRModule, prim_funcs: dict[Any, Any]
) -> Any:
    """Write the computation of a call on the shards of a device.

    Parameters
    ----------
    cx : LocalCall
        Padding that the call would read is masked in it first.
    registration : Registration or None
        The registration of the op; None where its rule is derived: its TIR has shown that the op
        computes on shards what it computes on full tensors.
    mod : IRModule
        Holds the PrimFunc of a ``call_tir``.
    prim_funcs : dict
        See :func:`.tir.call_tir`. Extended.

    Raises
    ------
    LoweringError
        DIST0507 when the call reads padding that no value makes harmless, DIST0508 when a
        PrimFunc cannot be sharded.
    """
    protect(cx, NO_PADDING if registration is None else registration.padding)
    if str(cx.call.op.name) in TIR_CALLS:
        return call_tir(cx, mod, prim_funcs)
    if (
        registration is None
        or registration.local is None
        or registration.local is SAME_OP
        or not cx.form.sharded
    ):
        return cx.same()
    return registration.local(cx)


def stays_zero(cx: LocalCall, registration: Registration | None) -> bool:
    """Return whether the padding of the results surely holds zeros."""
    return padding_stays_zero(cx, NO_PADDING if registration is None else registration.padding)
