# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe a function that is a pattern of a library (``Composite``) as one kernel."""

from __future__ import annotations

from tvm_distir.core.ops import TENSOR_CLASSES

from .parts import Function, Op


def library_kernel(pattern: str, fn: Function) -> Op | None:
    """Return the kernel of a pattern, without name and results.

    Parameters
    ----------
    pattern : str
        The name of the pattern, such as ``cublas.matmul_bias``.
    fn : Function
        The function that it matched, as exported. Values between its ops stay in the kernel.

    Returns
    -------
    Op or None
        The work of all ops, the operands and results of the pattern as bytes, at most what its
        ops read, and class and type of the product with most FLOPs, or else of the op. Its inputs
        are the positions of all parameters. None where it does more than compute.
    """
    ops = [op for op in fn.ops if op.kind != "view"]
    if not ops or any(op.kind != "compute" for op in ops):
        return None
    anchor = max(ops, key=lambda op: (op.kernel_class in TENSOR_CLASSES, op.flops))
    produced = {value for op in fn.ops for value in op.outputs}
    read = {value for op in fn.ops for value in op.inputs} - produced
    return Op(
        "", "compute", pattern, tuple(range(len(fn.params))), (), sum(op.flops for op in ops),
        min(sum(op.bytes_read for op in ops), sum(fn.values[v].bytes for v in read)),
        sum(fn.values[v].bytes for v in set(fn.results)), all(op.modelled for op in ops),
        anchor.kernel_class, anchor.dtype, next((op.reason for op in ops if not op.modelled), ""),
        anchor=anchor.op,
    )  # fmt: skip


def only_kernel(fn: Function) -> Op | None:
    """Return the only op of a function of a library, a kernel, if the parameters are its operands.

    Its inputs are the positions of parameters, in the order of the kernel.
    """
    if [op.kind for op in fn.ops] != ["compute"] or fn.ops[0].outputs != fn.results:
        return None
    (kernel,) = fn.ops
    position = {value: number for number, value in enumerate(fn.params)}
    if not all(value in position for value in kernel.inputs):
        return None
    return kernel._replace(inputs=tuple(position[value] for value in kernel.inputs))
