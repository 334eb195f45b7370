# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Nothing is gathered: each device works on its own keys and values, then on those of its
neighbour, and rescales what it has to the larger maximum.
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
        q: R.Tensor((1, 4, 2), "float32"),
        k: R.Tensor((1, 4, 2), "float32"),
        v: R.Tensor((1, 4, 2), "float32"),
    ):
        with R.dataflow():
            keys = R.dist.all_gather(k, "mesh[0]", 0, 1)
            values = R.dist.all_gather(v, "mesh[0]", 0, 1)
            turned = R.permute_dims(keys, [0, 2, 1])
            scores = R.matmul(q, turned)
            probs = R.nn.softmax(scores, -1)
            out = R.matmul(probs, values)
            R.output(out)
        return out


@I.ir_module
class After:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(
        q: R.Tensor((1, 4, 2), "float32"),
        k: R.Tensor((1, 4, 2), "float32"),
        v: R.Tensor((1, 4, 2), "float32"),
    ):
        with R.dataflow():
            k_next = R.dist.collective_permute(k, "mesh[0]", 0, shift=1, wrap=True)
            v_next = R.dist.collective_permute(v, "mesh[0]", 0, shift=1, wrap=True)
            # The device's own block: the largest score, exponentials below it, and their sum.
            turned = R.permute_dims(k, [0, 2, 1])
            scores = R.matmul(q, turned)
            largest = R.max(scores, axis=[-1], keepdims=True)
            bound = R.maximum(largest, R.const(-3.4028234663852886e38, "float32"))
            shifted = R.subtract(scores, bound)
            powers = R.exp(shifted)
            total = R.sum(powers, axis=[-1], keepdims=True)
            out = R.matmul(powers, v)
            # The block of the neighbour, below the maximum of both.
            turned_1 = R.permute_dims(k_next, [0, 2, 1])
            scores_1 = R.matmul(q, turned_1)
            largest_1 = R.max(scores_1, axis=[-1], keepdims=True)
            bound_1 = R.maximum(largest_1, bound)
            shifted_1 = R.subtract(scores_1, bound_1)
            powers_1 = R.exp(shifted_1)
            total_1 = R.sum(powers_1, axis=[-1], keepdims=True)
            # The sum and the result of the first block are rescaled, then the second's are added.
            moved = R.subtract(bound, bound_1)
            factor = R.exp(moved)
            rescaled = R.multiply(total, factor)
            total_2 = R.add(rescaled, total_1)
            out_1 = R.matmul(powers_1, v_next)
            out_rescaled = R.multiply(out, factor)
            terms = R.add(out_rescaled, out_1)
            wide = R.divide(terms, total_2)
            result = wide
            R.output(result)
        return result
