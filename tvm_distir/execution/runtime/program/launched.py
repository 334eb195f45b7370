# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite a level-5 module to calls of kernels and collectives."""

from __future__ import annotations

import tvm
from tvm import ir, relax

from tvm_distir.core.ir import outline_branches
from tvm_distir.transforms import GROUPED_KERNELS, WRITTEN_OPS, kernel_passes

from .targets import target_in_scope

_OWN = "relax.dist."


def launched(mod: ir.IRModule, fuse: bool = False) -> ir.IRModule:
    """Make every compute op of a level-5 module the call of a PrimFunc.

    ``td.export`` reads the result as it reads the module: collectives stay what they are.

    Parameters
    ----------
    mod : IRModule
        The module, at level 5.
    fuse : bool
        Whether to fuse kernels as TVM's ``FuseOps`` does. False: the kernels that
        :func:`tvm_distir.run` launches on a CPU, one per op, or per chain of elementwise ops.
    """
    kernels = {**WRITTEN_OPS, **GROUPED_KERNELS}
    names = map(str, ir.Op.list_op_names())
    communication = [n for n in names if n.startswith(_OWN) and n not in kernels]
    passes = kernel_passes(skip_ops=communication)
    if fuse:
        passes += [
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
    with target_in_scope():
        return tvm.transform.Sequential([*passes, relax.transform.RewriteDataflowReshape()])(
            outline_branches(mod)
        )
