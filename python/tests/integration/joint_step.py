# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa
"""A training step as torch exports it: forward, backward and update in one graph.

Of ``down(gelu(rms(up(x)) * scale))`` with cross entropy and SGD at the rate 0.1::

    def step(x, t, *weights):
        gradients, loss = torch.func.grad_and_value(loss_of)(weights)
        return (loss, *(w - 0.1 * g for w, g in zip(weights, gradients)))

    graph = torch.fx.experimental.proxy_tensor.make_fx(step, tracing_mode="fake")(*arguments)
    program = torch.export.export(graph, arguments, strict=False)
    from_exported_program(program)

with torch 2.13 and TVM 0.27, and `num_input` added: x and t are data. Weights: scale, up.weight, up.bias, down.weight, down.bias.
"""

from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Module:
    @R.function
    def main(
        arg0_1: R.Tensor((8, 6), dtype="float32"),
        arg1_1: R.Tensor((8,), dtype="int64"),
        arg2_1: R.Tensor((16,), dtype="float32"),
        arg3_1: R.Tensor((16, 6), dtype="float32"),
        arg4_1: R.Tensor((16,), dtype="float32"),
        arg5_1: R.Tensor((5, 16), dtype="float32"),
        arg6_1: R.Tensor((5,), dtype="float32"),
    ) -> R.Tuple(
        R.Tensor((), dtype="float32"),
        R.Tensor((16,), dtype="float32"),
        R.Tensor((16, 6), dtype="float32"),
        R.Tensor((16,), dtype="float32"),
        R.Tensor((5, 16), dtype="float32"),
        R.Tensor((5,), dtype="float32"),
    ):
        R.func_attr({"num_input": 2})
        with R.dataflow():
            lv: R.Tensor((6, 16), dtype="float32") = R.permute_dims(arg3_1, axes=[1, 0])
            lv1: R.Tensor((8, 16), dtype="float32") = R.matmul(arg0_1, lv, out_dtype="float32")
            lv2: R.Tensor((8, 16), dtype="float32") = R.add(arg4_1, lv1)
            lv3: R.Tensor((8, 16), dtype="float32") = R.multiply(lv2, lv2)
            lv4: R.Tensor((8, 1), dtype="float32") = R.mean(lv3, axis=[-1], keepdims=True)
            lv5: R.Tensor((8, 1), dtype="float32") = R.add(
                lv4, R.const(9.9999997473787516e-06, "float32")
            )
            lv6: R.Tensor((8, 1), dtype="float32") = R.rsqrt(lv5)
            lv7: R.Tensor((8, 16), dtype="float32") = R.multiply(lv2, lv6)
            lv8: R.Tensor((8, 16), dtype="float32") = R.multiply(lv7, arg2_1)
            lv9: R.Tensor((8, 16), dtype="float32") = R.nn.gelu(lv8)
            lv10: R.Tensor((16, 5), dtype="float32") = R.permute_dims(arg5_1, axes=[1, 0])
            lv11: R.Tensor((8, 5), dtype="float32") = R.matmul(lv9, lv10, out_dtype="float32")
            lv12: R.Tensor((8, 5), dtype="float32") = R.add(arg6_1, lv11)
            lv13: R.Tensor((8, 5), dtype="float32") = R.nn.log_softmax(lv12, axis=1)
            lv14: R.Tensor((8,), dtype="bool") = R.not_equal(arg1_1, R.const(-100, "int64"))
            lv15: R.Tensor((), dtype="int64") = R.const(0, "int64")
            lv16: R.Tensor((8,), dtype="int64") = R.where(lv14, arg1_1, lv15)
            lv17: R.Tensor((8, 1), dtype="int64") = R.expand_dims(lv16, axis=[1])
            lv18: R.Tensor((8, 1), dtype="float32") = R.gather_elements(lv13, lv17, axis=1)
            lv19: R.Tensor((8,), dtype="float32") = R.squeeze(lv18, axis=[1])
            lv20: R.Tensor((8,), dtype="float32") = R.negative(lv19)
            lv21: R.Tensor((8,), dtype="bool") = R.not_equal(arg1_1, R.const(-100, "int64"))
            lv22: R.Tensor((), dtype="float32") = R.const(0.0, "float32")
            lv23: R.Tensor((8,), dtype="float32") = R.where(lv21, lv20, lv22)
            lv24: R.Tensor((8,), dtype="bool") = R.not_equal(arg1_1, R.const(-100, "int64"))
            lv25: R.Tensor((8,), dtype="int64") = R.astype(lv24, dtype="int64")
            lv26: R.Tensor((), dtype="int64") = R.sum(lv25, axis=None, keepdims=False)
            lv27: R.Tensor((), dtype="float32") = R.astype(lv26, dtype="float32")
            lv28: R.Tensor((), dtype="float32") = R.sum(lv23, axis=None, keepdims=False)
            lv29: R.Tensor((), dtype="float32") = R.divide(lv28, lv27)
            lv30: R.Tensor((), dtype="float32") = R.full_like(
                lv29, R.const(1.0, "float32"), dtype=None
            )
            lv31: R.Tensor((), dtype="float32") = R.divide(lv30, lv27)
            lv32: R.Tensor((8, 1), dtype="int64") = R.expand_dims(arg1_1, axis=[1])
            lv33: R.Tensor((8, 1), dtype="bool") = R.not_equal(lv32, R.const(-100, "int64"))
            lv34: R.Tensor((), dtype="int64") = R.const(0, "int64")
            lv35: R.Tensor((8, 1), dtype="int64") = R.where(lv33, lv32, lv34)
            lv36: R.Tensor((8, 5), dtype="float32") = R.full_like(
                lv13, R.const(0.0, "float32"), dtype=None
            )
            lv37: R.Tensor((8, 1), dtype="float32") = R.broadcast_to(
                R.const(-1.0, "float32"), R.shape([8, 1])
            )
            lv38: R.Tensor((8, 5), dtype="float32") = R.scatter_elements(
                lv36, lv35, lv37, axis=1, reduction="update"
            )
            lv39: R.Tensor((8, 1), dtype="bool") = R.not_equal(lv32, R.const(-100, "int64"))
            lv40: R.Tensor((), dtype="float32") = R.const(0.0, "float32")
            lv41: R.Tensor((8, 1), dtype="float32") = R.where(lv39, lv31, lv40)
            lv42: R.Tensor((8, 5), dtype="float32") = R.multiply(lv38, lv41)
            lv43: R.Tensor((8, 5), dtype="float32") = R.exp(lv13)
            lv44: R.Tensor((8, 1), dtype="float32") = R.sum(lv42, axis=[1], keepdims=True)
            lv45: R.Tensor((8, 5), dtype="float32") = R.multiply(lv43, lv44)
            lv46: R.Tensor((8, 5), dtype="float32") = R.subtract(lv42, lv45)
            lv47: R.Tensor((5, 16), dtype="float32") = R.permute_dims(lv10, axes=[1, 0])
            lv48: R.Tensor((8, 16), dtype="float32") = R.matmul(lv46, lv47, out_dtype="float32")
            lv49: R.Tensor((5, 8), dtype="float32") = R.permute_dims(lv46, axes=[1, 0])
            lv50: R.Tensor((5, 16), dtype="float32") = R.matmul(lv49, lv9, out_dtype="float32")
            lv51: R.Tensor((16, 5), dtype="float32") = R.permute_dims(lv50, axes=[1, 0])
            lv52: R.Tensor((1, 5), dtype="float32") = R.sum(lv46, axis=[0], keepdims=True)
            lv53: R.Tensor((5,), dtype="float32") = R.reshape(lv52, R.shape([5]))
            lv54: R.Tensor((5, 16), dtype="float32") = R.permute_dims(lv51, axes=[1, 0])
            lv55: R.Tensor((8, 16), dtype="float32") = R.multiply(
                lv8, R.const(0.70710676908493042, "float32")
            )
            lv56: R.Tensor((8, 16), dtype="float32") = R.erf(lv55)
            lv57: R.Tensor((8, 16), dtype="float32") = R.add(lv56, R.const(1.0, "float32"))
            lv58: R.Tensor((8, 16), dtype="float32") = R.multiply(lv57, R.const(0.5, "float32"))
            lv59: R.Tensor((8, 16), dtype="float32") = R.multiply(lv8, lv8)
            lv60: R.Tensor((8, 16), dtype="float32") = R.multiply(lv59, R.const(-0.5, "float32"))
            lv61: R.Tensor((8, 16), dtype="float32") = R.exp(lv60)
            lv62: R.Tensor((8, 16), dtype="float32") = R.multiply(
                lv61, R.const(0.39894229173660278, "float32")
            )
            lv63: R.Tensor((8, 16), dtype="float32") = R.multiply(lv8, lv62)
            lv64: R.Tensor((8, 16), dtype="float32") = R.add(lv58, lv63)
            lv65: R.Tensor((8, 16), dtype="float32") = R.multiply(lv48, lv64)
            lv66: R.Tensor((8, 16), dtype="float32") = R.multiply(lv65, lv7)
            lv67: R.Tensor((8, 16), dtype="float32") = R.multiply(lv65, arg2_1)
            lv68: R.Tensor((1, 16), dtype="float32") = R.sum(lv66, axis=[0], keepdims=True)
            lv69: R.Tensor((16,), dtype="float32") = R.reshape(lv68, R.shape([16]))
            lv70: R.Tensor((8, 16), dtype="float32") = R.multiply(lv67, lv2)
            lv71: R.Tensor((8, 16), dtype="float32") = R.multiply(lv67, lv6)
            lv72: R.Tensor((8, 1), dtype="float32") = R.sum(lv70, axis=[1], keepdims=True)
            lv73: R.Tensor((8, 1), dtype="float32") = R.power(lv6, R.const(3.0, "float32"))
            lv74: R.Tensor((8, 1), dtype="float32") = R.multiply(lv72, R.const(-0.5, "float32"))
            lv75: R.Tensor((8, 1), dtype="float32") = R.multiply(lv74, lv73)
            lv76: R.Tensor((8, 16), dtype="float32") = R.broadcast_to(lv75, R.shape([8, 16]))
            lv77: R.Tensor((8, 16), dtype="float32") = R.divide(lv76, R.const(16.0, "float32"))
            lv78: R.Tensor((8, 16), dtype="float32") = R.multiply(lv77, lv2)
            lv79: R.Tensor((8, 16), dtype="float32") = R.multiply(lv77, lv2)
            lv80: R.Tensor((8, 16), dtype="float32") = R.add(lv71, lv79)
            lv81: R.Tensor((8, 16), dtype="float32") = R.add(lv80, lv78)
            lv82: R.Tensor((16, 8), dtype="float32") = R.permute_dims(lv81, axes=[1, 0])
            lv83: R.Tensor((16, 6), dtype="float32") = R.matmul(lv82, arg0_1, out_dtype="float32")
            lv84: R.Tensor((6, 16), dtype="float32") = R.permute_dims(lv83, axes=[1, 0])
            lv85: R.Tensor((1, 16), dtype="float32") = R.sum(lv81, axis=[0], keepdims=True)
            lv86: R.Tensor((16,), dtype="float32") = R.reshape(lv85, R.shape([16]))
            lv87: R.Tensor((16, 6), dtype="float32") = R.permute_dims(lv84, axes=[1, 0])
            lv88: R.Tensor((16,), dtype="float32") = R.multiply(
                lv69, R.const(0.10000000149011612, "float32")
            )
            lv89: R.Tensor((16,), dtype="float32") = R.subtract(arg2_1, lv88)
            lv90: R.Tensor((16, 6), dtype="float32") = R.multiply(
                lv87, R.const(0.10000000149011612, "float32")
            )
            lv91: R.Tensor((16, 6), dtype="float32") = R.subtract(arg3_1, lv90)
            lv92: R.Tensor((16,), dtype="float32") = R.multiply(
                lv86, R.const(0.10000000149011612, "float32")
            )
            lv93: R.Tensor((16,), dtype="float32") = R.subtract(arg4_1, lv92)
            lv94: R.Tensor((5, 16), dtype="float32") = R.multiply(
                lv54, R.const(0.10000000149011612, "float32")
            )
            lv95: R.Tensor((5, 16), dtype="float32") = R.subtract(arg5_1, lv94)
            lv96: R.Tensor((5,), dtype="float32") = R.multiply(
                lv53, R.const(0.10000000149011612, "float32")
            )
            lv97: R.Tensor((5,), dtype="float32") = R.subtract(arg6_1, lv96)
            gv: R.Tuple(
                R.Tensor((), dtype="float32"),
                R.Tensor((16,), dtype="float32"),
                R.Tensor((16, 6), dtype="float32"),
                R.Tensor((16,), dtype="float32"),
                R.Tensor((5, 16), dtype="float32"),
                R.Tensor((5,), dtype="float32"),
            ) = lv29, lv89, lv91, lv93, lv95, lv97
            R.output(gv)
        return gv
