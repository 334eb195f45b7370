# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Nothing is gathered: each device works on its own keys and values, then on those of its
neighbour, and the results are weighed below the larger log-sum-exp.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "ring{axes=[a]}"


@I.ir_module
class Before:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        q: R.Tensor((1, 4, 3, 2), "float32"),
        k: R.Tensor((1, 4, 3, 2), "float32"),
        v: R.Tensor((1, 4, 3, 2), "float32"),
    ):
        with R.dataflow():
            keys = R.dist.all_gather(k, "mesh[0]", 0, 1)
            values = R.dist.all_gather(v, "mesh[0]", 0, 1)
            pair = R.dist.attention(q, keys, values, scale=0.5)
            out = pair[0]
            R.output(out)
        return out


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        q: R.Tensor((1, 4, 3, 2), "float32"),
        k: R.Tensor((1, 4, 3, 2), "float32"),
        v: R.Tensor((1, 4, 3, 2), "float32"),
    ):
        with R.dataflow():
            # The device's own block.
            own = R.dist.attention(q, k, v, scale=0.5)
            out_own = own[0]
            lse_own = own[1]
            k_next = R.dist.collective_permute(k, "mesh[0]", 0, shift=1, wrap=True)
            v_next = R.dist.collective_permute(v, "mesh[0]", 0, shift=1, wrap=True)
            # The block of the neighbour.
            other = R.dist.attention(q, k_next, v_next, scale=0.5)
            out_other = other[0]
            lse_other = other[1]
            # The exponentials of both blocks below the larger log-sum-exp weigh their results.
            top = R.maximum(lse_own, lse_other)
            moved_own = R.subtract(lse_own, top)
            weight_own = R.exp(moved_own)
            moved_other = R.subtract(lse_other, top)
            weight_other = R.exp(moved_other)
            turned_own = R.permute_dims(weight_own, [0, 2, 1])
            column_own = R.reshape(turned_own, (1, 4, 3, 1))
            term_own = R.multiply(out_own, column_own)
            turned_other = R.permute_dims(weight_other, [0, 2, 1])
            column_other = R.reshape(turned_other, (1, 4, 3, 1))
            term_other = R.multiply(out_other, column_other)
            terms = R.add(term_own, term_other)
            total = R.add(weight_own, weight_other)
            turned = R.permute_dims(total, [0, 2, 1])
            column = R.reshape(turned, (1, 4, 3, 1))
            out = R.divide(terms, column)
            result = out
            R.output(result)
        return result
