# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe a function that is a pattern of a library (``Composite``) as one kernel."""

from __future__ import annotations

from .parts import Function, Op


def library_kernel(pattern: str, fn: Function) -> Op | None:
    """Return the kernel of a pattern, without name, operands and results.

    Parameters
    ----------
    pattern : str
        The name of the pattern, such as ``cublas.matmul_bias``.
    fn : Function
        The function that it matched, as exported. Values between its ops stay in the kernel.

    Returns
    -------
    Op or None
        Its only op as it is; of several the work of all, the operands and results of the pattern
        as bytes, and class and type of the op with most FLOPs. None where it does more than
        compute.
    """
    ops = [op for op in fn.ops if op.kind != "view"]
    if not ops or any(op.kind != "compute" for op in ops):
        return None
    anchor = max(ops, key=lambda op: op.flops)
    if len(ops) == 1:
        return anchor
    produced = {value for op in fn.ops for value in op.outputs}
    read = {value for op in fn.ops for value in op.inputs} - produced
    return Op(
        "", "compute", pattern, (), (), sum(op.flops for op in ops),
        min(sum(op.bytes_read for op in ops), sum(fn.values[v].bytes for v in read)),
        sum(fn.values[v].bytes for v in set(fn.results)), all(op.modelled for op in ops),
        anchor.kernel_class, anchor.dtype, next((op.reason for op in ops if not op.modelled), ""),
        anchor=anchor.op,
    )  # fmt: skip
