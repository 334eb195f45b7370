# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The plan shards `labels` along its positions, so the loss keeps `(batch, positions)` instead of
merging them.
"""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

PASS = "annotate"
PLAN = {
    "schema_version": 1,
    "mesh": {"cp": 2},
    "rules": [{"param": "labels", "placement": "S[1]"}],
}


@I.ir_module
class Before:
    @R.function
    def main(logits: R.Tensor((4, 6, 5), "float32"), labels: R.Tensor((4, 6), "int64")) -> R.Tensor(
        (), "float32"
    ):
        R.func_attr({"num_input": 2})
        with R.dataflow():
            view: R.Tensor((24, 5), "float32") = R.reshape(logits, R.shape([24, 5]))
            view1: R.Tensor((24,), "int64") = R.reshape(labels, R.shape([24]))
            log_probs: R.Tensor((24, 5), "float32") = R.nn.log_softmax(view, axis=1)
            column: R.Tensor((24, 1), "int64") = R.expand_dims(view1, axis=[1])
            picked: R.Tensor((24, 1), "float32") = R.gather_elements(log_probs, column, axis=1)
            each: R.Tensor((24,), "float32") = R.squeeze(picked, axis=[1])
            loss: R.Tensor((), "float32") = R.mean(each, axis=[0], keepdims=False)
            R.output(loss)
        return loss


@I.ir_module
class After:
    I.module_attrs({"device_num": 2, "mesh_axes": [["cp"]], "mesh_names": ["mesh0"]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @R.function
    def main(logits: R.Tensor((4, 6, 5), "float32"), labels: R.Tensor((4, 6), "int64")) -> R.Tensor(
        (), "float32"
    ):
        R.func_attr({"num_input": 2})
        with R.dataflow():
            labels_placed = R.dist.annotate_sharding(labels, "mesh[0]", "S[1]")
            log_probs: R.Tensor((4, 6, 5), "float32") = R.nn.log_softmax(logits, axis=2)
            column: R.Tensor((4, 6, 1), "int64") = R.expand_dims(labels_placed, axis=[2])
            picked: R.Tensor((4, 6, 1), "float32") = R.gather_elements(log_probs, column, axis=2)
            each: R.Tensor((4, 6), "float32") = R.squeeze(picked, axis=[2])
            loss: R.Tensor((), "float32") = R.mean(each, axis=[0, 1], keepdims=False)
            R.output(loss)
        return loss
