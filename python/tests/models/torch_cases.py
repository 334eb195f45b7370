# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Calls of ATen operators: every overload that is imported, in the forms it may have."""

from __future__ import annotations

import math

import torch

INF = math.inf
GROUPS = ("elementwise", "views", "indices", "reductions", "products", "norms", "windows")
GROUPS += ("backward",)


class Draw:
    """Tensors for cases, of one float type."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.random = torch.Generator().manual_seed(0)

    def floats(self, *shape, low=-2.0, high=2.0):
        drawn = torch.rand(shape, generator=self.random) * (high - low) + low
        return drawn.to(self.dtype)

    def ints(self, high, *shape, low=0, dtype=torch.int64):
        return torch.randint(low, high, shape, generator=self.random).to(dtype)

    def bools(self, *shape):
        return torch.rand(shape, generator=self.random) < 0.5


def unary(x, p, n, m, b):
    for name in "exp sin cos tan tanh sigmoid erf sinh cosh atan abs neg ceil floor trunc".split():
        yield f"{name}.default", (x,), {}
    for name in "sign isnan isinf isfinite relu silu hardsigmoid hardswish hardtanh".split():
        yield f"{name}.default", (x,), {}
    halves = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.4, -2.6], dtype=x.dtype)
    yield "round.default", (halves,), {}
    for name in ("elu", "expm1"):
        yield f"{name}.default", (x,), {}
    for name in "log sqrt rsqrt asin acos log2 log10 log1p reciprocal".split():
        yield f"{name}.default", (p,), {}
    for name in ("exp", "sqrt", "rsqrt", "log", "reciprocal", "log2"):  # of integers are floats
        yield f"{name}.default", (m,), {}
    for name in ("abs", "neg", "sign", "bitwise_not", "logical_not"):
        yield f"{name}.default", (n,), {}
    yield "bitwise_not.default", (b,), {}


def elementwise(d):
    x, y, p = d.floats(3, 4), d.floats(4), d.floats(3, 4, low=0.1, high=0.9)
    n, m, b, c = d.ints(9, 3, 4, low=-8), d.ints(9, 3, 4, low=1), d.bools(3, 4), d.bools(3, 4)
    yield from unary(x, p, n, m, b)
    for name in ("logical_and", "logical_or", "logical_xor"):
        yield f"{name}.default", (b, n), {}
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__"):
        yield f"{name}.Tensor", (n, m), {}
        yield f"{name}.Tensor", (b, c), {}
        yield f"{name}.Scalar", (n, 5), {}
    yield "bitwise_and.Tensor", (b, n), {}
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        yield f"{name}.Tensor", (n, m), {}
        yield f"{name}.Tensor", (n, x), {}
        yield f"{name}.Scalar", (n, 0.5), {}  # 0.5 is not 0
        yield f"{name}.Scalar", (x, 1), {}
    for name in ("add", "sub"):
        yield f"{name}.Tensor", (x, y), {"alpha": 3}
        yield f"{name}.Tensor", (n, m), {"alpha": -2}
        yield f"{name}.Tensor", (x, n), {}
        yield f"{name}.Scalar", (x, 2.5, 2), {}
        yield f"{name}.Scalar", (n, 0.5), {}
        yield f"{name}.Tensor", (x, torch.tensor(2.0)), {}
    yield "add.Tensor", (b, n), {}
    yield "rsub.Scalar", (x, 2.0), {}
    yield "rsub.Scalar", (n, 2.5, 3), {}
    yield "rsub.Tensor", (x, y), {"alpha": 2}
    for name in ("mul", "div"):
        yield f"{name}.Tensor", (x, p), {}
        yield f"{name}.Tensor", (n, m), {}
        yield f"{name}.Scalar", (n, 0.5), {}
        yield f"{name}.Scalar", (x, 3), {}
    yield "mul.Tensor", (b, x), {}
    for mode in ("floor", "trunc", None):
        yield "div.Tensor_mode", (n, m), {"rounding_mode": mode}
        yield "div.Tensor_mode", (x, p), {"rounding_mode": mode}
        yield "div.Scalar_mode", (n, 3), {"rounding_mode": mode}
    yield "floor_divide.default", (n, m), {}
    yield "remainder.Tensor", (n, m), {}
    yield "remainder.Scalar", (n, 3), {}
    for name in ("maximum.default", "minimum.default", "max.other", "min.other"):
        yield name, (x, y), {}
        yield name, (n, x), {}
    yield "atan2.default", (x, y), {}
    yield "pow.Tensor_Scalar", (x, 2), {}
    yield "pow.Tensor_Scalar", (x, 3), {}
    yield "pow.Tensor_Scalar", (p, -0.5), {}
    yield "pow.Tensor_Scalar", (n, 3), {}
    yield "pow.Tensor_Scalar", (n, 0), {}
    yield "pow.Tensor_Scalar", (m, 0.5), {}
    yield "pow.Tensor_Tensor", (p, x), {}
    yield "pow.Scalar", (2.0, x), {}
    yield "pow.Scalar", (10000.0, n), {}
    yield "clamp.default", (x, -0.5), {}
    yield "clamp.default", (x, None, 0.5), {}
    yield "clamp.default", (n, -1.5, 3), {}
    yield "clamp.Tensor", (x, y, None), {}
    yield "clamp_min.default", (x, 0), {}
    yield "clamp_max.default", (n, 2), {}
    yield "where.self", (b, x, y), {}
    yield "where.self", (b, n, x), {}
    yield "where.ScalarOther", (b, x, -INF), {}
    yield "where.ScalarSelf", (b, 1, x), {}
    yield "where.Scalar", (b, 1, 0.5), {}
    yield "masked_fill.Scalar", (x, b, -INF), {}
    yield "masked_fill.Tensor", (x, b, torch.tensor(2.0)), {}
    yield "gelu.default", (x,), {}
    yield "gelu.default", (x,), {"approximate": "tanh"}
    yield "leaky_relu.default", (x, 0.2), {}
    yield "softplus.default", (x,), {}
    yield "softplus.default", (x, 2.0, 1.0), {}
    yield "elu.default", (x, 1.5, 2.0, 0.5), {}
    yield "hardtanh.default", (x, -0.5, 0.25), {}
    yield "full.default", ([2, 3], 1.5), {"dtype": torch.float32}
    yield "full.default", ([2, 3], -INF), {"dtype": torch.float32}
    yield "full.default", ([2], 7), {}
    yield "new_full.default", (n, [2], 3), {}
    yield "full_like.default", (x, 3), {}
    yield "full_like.default", (x, 3), {"dtype": torch.int64}
    yield "fill.Scalar", (x, 2), {}
    yield "fill.Tensor", (x, torch.tensor(3)), {}
    for name in ("zeros.default", "ones.default"):
        yield name, ([2, 3],), {"dtype": torch.int64}
        yield f"new_{name}", (x, [2, 3]), {}
        yield name.replace(".", "_like."), (n,), {"dtype": torch.bool}
    yield "scalar_tensor.default", (2.5,), {}
    yield "arange.default", (7,), {}
    yield "arange.start", (2, 7), {"dtype": torch.float32}
    yield "arange.start_step", (1, 8, 3), {}
    yield "arange.start_step", (4, -5, -2), {}
    yield "arange.start_step", (3, -1, -1), {"dtype": torch.float32}
    yield "eye.default", (3,), {}
    yield "eye.m", (3, 4), {}
    for name in ("clone", "alias", "detach", "contiguous", "lift_fresh_copy"):
        yield f"{name}.default", (x,), {}
    yield "_to_copy.default", (n,), {"dtype": torch.float32}
    yield "_to_copy.default", (x,), {"dtype": torch.int64}
    yield "_to_copy.default", (n,), {"dtype": torch.bool}
    yield "to.dtype", (x, torch.float32), {}
    yield "to.dtype_layout", (b,), {"dtype": torch.float32}
    yield "to.device", (x, "cpu", torch.float32), {}
    yield "to.other", (n, x), {}
    yield "type_as.default", (n, x), {}
    yield "copy.default", (x, y), {}
    yield "dropout.default", (x, 0.5, False), {}
    yield "native_dropout.default", (x, 0.5, False), {"first": True}


def views(d):
    x, n, b = d.floats(2, 3, 4), d.ints(9, 2, 3, 4), d.bools(2, 3, 4)
    yield "view.default", (x, [6, -1]), {}
    yield "view.default", (d.floats(2, 0, 3), [3, 2, 1, 0]), {}
    yield "_unsafe_view.default", (x, [4, 6]), {}
    yield "reshape.default", (x, [2, 12]), {}
    yield "flatten.using_ints", (x, 1), {}
    yield "unflatten.int", (x, -1, [2, -1]), {}
    yield "expand.default", (d.floats(3, 1), [2, -1, 4]), {}
    yield "expand_as.default", (d.floats(3, 1), x), {}
    yield "permute.default", (x, [2, 0, -2]), {}
    yield "transpose.int", (x, 0, -1), {}
    yield "t.default", (d.floats(2, 3),), {}
    yield "unsqueeze.default", (x, -2), {}
    yield "squeeze.default", (d.floats(1, 3, 1),), {}
    yield "squeeze.dim", (d.floats(1, 3, 1), -1), {}
    yield "squeeze.dim", (x, 0), {}  # a dim of another size stays
    yield "squeeze.dims", (d.floats(1, 3, 1), [0, 1]), {}
    yield "cat.default", ([x, d.floats(2, 1, 4)], 1), {}
    yield "cat.default", ([x, n], -1), {}
    yield "cat.default", ([x, x[:, :0]], 1), {}
    yield "stack.default", ([x, x], 1), {}
    yield "split.Tensor", (x, 3, -1), {}
    yield "split_with_sizes.default", (x, [1, 2], 1), {}
    yield "chunk.default", (x, 3, 2), {}
    yield "unbind.int", (x, 1), {}
    yield "slice.Tensor", (x, 2, -3, -1), {}
    yield "slice.Tensor", (x, 2, None, None, 2), {}
    yield "slice.Tensor", (x, 1, 1, 2**63 - 1), {}
    yield "narrow.default", (x, 2, 1, 2), {}
    yield "select.int", (x, 1, -1), {}
    yield "as_strided.default", (x, [x.shape[0], x.shape[1] * x.shape[2]], [x[0].numel(), 1]), {}
    yield "as_strided.default", (x, [2, 3], [3, 1], 1), {}
    yield "as_strided.default", (x, [2, 2], [1, 2]), {}
    yield "flip.default", (x, [0, 2]), {}
    yield "roll.default", (x, [1, -2], [1, 2]), {}
    yield "unfold.default", (x, 1, 2, 1), {}
    yield "unfold.default", (x, -1, 3, 2), {}
    yield "unfold.default", (x, 2, 2, 2), {}
    yield "repeat.default", (x, [2, 1, 1, 2]), {}
    yield "repeat_interleave.self_int", (x, 2, 1), {}
    yield "pad.default", (x, [1, 0, 0, 2]), {}
    yield "constant_pad_nd.default", (x, [1, -1, 0, 2], 1.5), {}
    yield "constant_pad_nd.default", (b, [1, 1], 1), {}
    yield "diff.default", (x,), {}
    yield "diff.default", (n, 2, 1), {}
    yield "diff.default", (n, 1, -1, n[..., :1]), {}
    yield "slice_scatter.default", (x, d.floats(2, 2, 4), 1, 1, 3), {}
    yield "slice_scatter.default", (x, d.floats(2, 3, 2), 2, 1, 4, 2), {}
    yield "select_scatter.default", (x, d.floats(2, 4), 1, -1), {}
    yield "tril.default", (x,), {}
    yield "triu.default", (b, 1), {}
    yield "cumsum.default", (x, -1), {}
    yield "cumsum.default", (n.to(torch.int32), 0), {}
    yield "cumsum.default", (b, 1), {}
    yield "cumprod.default", (x, 1), {}


def indices(d):
    x = d.floats(5, 4, 3)
    i, j = d.ints(4, 6), d.ints(3, 6)
    yield "embedding.default", (d.floats(7, 4), d.ints(7, 2, 3)), {}
    yield "index_select.default", (x, 1, i), {}
    yield "gather.default", (x, 1, d.ints(4, 5, 2, 3)), {}
    yield "index.Tensor", (x, [None, i]), {}
    yield "index.Tensor", (x, [None, i - 2]), {}  # from behind
    yield "index.Tensor", (x, [None, i, j]), {}  # together, not crossed
    yield "index.Tensor", (x, [i, j]), {}
    yield "index.Tensor", (x, [i, j, j]), {}
    yield "index.Tensor", (x, [i.reshape(2, 3), d.ints(4, 3)]), {}
    yield "_unsafe_index.Tensor", (x, [None, None, j]), {}
    for adds in (False, True):
        yield "index_put.default", (x, [torch.tensor([3, 1])], d.floats(2, 4, 3), adds), {}
        yield "index_put.default", (x, [None, torch.tensor([3, 0])], d.floats(5, 2, 3), adds), {}
        yield "index_put.default", (x, [torch.tensor([3, -1]), torch.tensor([1, 2])],
                                    d.floats(2, 3), adds), {}  # fmt: skip
        yield "index_put.default", (x, [d.bools(5, 4, 3)], d.floats(), adds), {}
    yield "_unsafe_index_put.default", (x, [i[:1]], d.floats(1, 4, 3)), {}
    index = torch.tensor([[0, 2], [1, 0]])
    yield "scatter.src", (d.floats(3, 3), 1, index, d.floats(2, 2)), {}
    yield "scatter.value", (d.floats(3, 3), 0, index, 1.5), {}
    yield "scatter_add.default", (d.floats(3, 3), 1, index, d.floats(2, 2)), {}
    yield "one_hot.default", (d.ints(4, 2, 3), 4), {}
    yield "masked_scatter.default", (x, d.bools(5, 4, 3), d.floats(70)), {}
    yield "masked_scatter.default", (x, d.bools(5, 1, 3), d.floats(6, 10)), {}


def reductions(d):
    x, n, b = d.floats(3, 4, 5), d.ints(9, 3, 4), d.bools(3, 4)
    for value in (x, n.to(torch.int32), b):
        yield "sum.default", (value,), {}
        yield "sum.dim_IntList", (value, [-1], True), {}
    yield "sum.dim_IntList", (x, [0, 1]), {}
    yield "sum.dim_IntList", (n, [0]), {"dtype": torch.float32}
    yield "mean.default", (x,), {}
    yield "mean.dim", (x, [0, -1]), {}
    yield "mean.dim", (n, [1]), {"dtype": torch.float32}
    yield "prod.default", (n[:1],), {}
    yield "prod.dim_int", (x, 1), {}
    for name in ("any", "all"):
        yield f"{name}.default", (b,), {}
        yield f"{name}.dim", (n, 1, True), {}
        yield f"{name}.dims", (b, [0, 1]), {}
    for name in ("amax", "amin"):
        yield f"{name}.default", (x, [1], True), {}
    for name in ("max", "min"):
        yield f"{name}.default", (x,), {}
        yield f"{name}.dim", (x, 1), {}
        yield f"{name}.dim", (x, -1, True), {}
    for name in ("argmax", "argmin"):
        yield f"{name}.default", (x, 1), {}
        yield f"{name}.default", (x,), {}
        yield f"{name}.default", (x, 2, True), {}
    for correction in (None, 0, 2):
        yield "var.correction", (x, [1]), {"correction": correction}
    yield "var_mean.correction", (x, [0, 2]), {"keepdim": True}
    for order in (1, 2, INF):
        yield "linalg_vector_norm.default", (x, order, [1]), {}
    yield "topk.default", (x, 2), {}
    yield "topk.default", (x, 2, 1, False, True), {}
    yield "sort.default", (x, 1, True), {}
    yield "sort.stable", (x,), {"stable": True, "dim": 0, "descending": False}
    yield "argsort.default", (x,), {}
    for counted in (d.floats(40), d.floats(5, 6), d.ints(8, 30).to(d.dtype)):
        yield "histc.default", (counted, 4, -1, 1), {}
        yield "histc.default", (counted, 8, 0, 7), {}
    yield "softmax.int", (x, 1), {}
    yield "_softmax.default", (x, -1, False), {}
    yield "log_softmax.int", (x, 1, torch.float32), {}
    yield "_log_softmax.default", (x, 0, False), {}


def products(d):
    a, b = d.floats(3, 4), d.floats(4, 5)
    yield "mm.default", (a, b), {}
    yield "bmm.default", (d.floats(2, 3, 4), d.floats(2, 4, 5)), {}
    yield "mv.default", (a, d.floats(4)), {}
    yield "dot.default", (d.floats(4), d.floats(4)), {}
    yield "matmul.default", (d.floats(2, 3, 4), b), {}
    yield "addmm.default", (d.floats(5), a, b), {"beta": 0.5, "alpha": 2}
    yield "addmm.default", (d.floats(3, 5), a, b), {"beta": 0}
    yield "baddbmm.default", (d.floats(1, 5), d.floats(2, 3, 4), d.floats(2, 4, 5)), {}
    yield "linear.default", (d.floats(2, 3, 4), d.floats(5, 4), d.floats(5)), {}
    yield "linear.default", (a, d.floats(5, 4)), {}
    q, k, v = d.floats(2, 4, 3, 8), d.floats(2, 4, 5, 8), d.floats(2, 4, 5, 6)
    name = "scaled_dot_product_attention.default"
    yield name, (q, k, v), {}
    yield name, (q, k, v, d.bools(2, 1, 3, 5) | torch.eye(3, 5, dtype=torch.bool)), {}
    yield name, (q, k, v, d.floats(3, 5)), {"scale": 0.5}
    yield name, (q, k[:, :, :3], v[:, :, :3], None, 0.0, True), {}
    yield name, (q, k[:, :2], v[:, :2]), {"enable_gqa": True}
    yield name, (q[0], k[0], v[0]), {}
    image, kernel = d.floats(2, 4, 6, 7), d.floats(6, 2, 3, 3)
    plain = [1, 1], [1, 1], [1, 1]
    yield "convolution.default", (image, kernel, d.floats(6), *plain, False, [0, 0], 2), {}
    yield "convolution.default", (image, d.floats(4, 3, 2, 2), None, [2, 2], [0, 0], [1, 1],
                                  True, [1, 1], 1), {}  # fmt: skip
    yield "conv1d.default", (d.floats(2, 3, 8), d.floats(4, 3, 3), d.floats(4), [2], [1]), {}
    yield "conv2d.default", (image[0], d.floats(3, 4, 3, 3), None, [1, 1], [2], [2]), {}
    yield "conv3d.default", (d.floats(1, 2, 4, 5, 5), d.floats(3, 2, 2, 2, 2)), {}


def norms(d):
    x, image = d.floats(3, 4, 8), d.floats(2, 4, 3, 5)
    w, v, c = d.floats(8), d.floats(8), d.floats(4)
    yield "layer_norm.default", (x, [8], w, v, 1e-3), {}
    yield "layer_norm.default", (x, [4, 8]), {}
    yield "native_layer_norm.default", (x, [8], w, None, 1e-3), {}
    yield "rms_norm.default", (x, [8], w), {}
    yield "rms_norm.default", (x, [8], None, 1e-3), {}
    yield "group_norm.default", (image, 2, c, c), {}
    yield "group_norm.default", (image, 4), {}
    yield "native_group_norm.default", (image, c, None, 2, 4, 15, 2, 1e-3), {}
    mean, variance = d.floats(4), d.floats(4, low=0.5, high=1.5)
    statistics = mean, variance
    name = "_native_batch_norm_legit"
    yield f"{name}_no_training.default", (image, c, c, *statistics, 0.1, 1e-3), {"first": True}
    yield f"{name}_functional.default", (image, c, c, *statistics, True, 0.1, 1e-3), {}
    yield f"{name}.no_stats", (image, c, None, True, 0.1, 1e-3), {}


def windows(d):
    image = d.floats(2, 3, 8, 9)
    yield "max_pool1d.default", (d.floats(2, 3, 9), 3, 2, 1), {}
    yield "max_pool2d.default", (image, 3, 2, 1), {}
    yield "max_pool2d.default", (image[0], [2, 3], [], 0, 1, True), {}
    yield "max_pool3d.default", (d.floats(1, 2, 4, 4, 4), 2), {}
    yield "max_pool2d_with_indices.default", (image, [3, 3], [2, 2], [1, 1]), {"first": True}
    yield "max_pool3d_with_indices.default", (d.floats(1, 2, 4, 4, 4), [2, 2, 2]), {"first": True}
    yield "avg_pool1d.default", (d.floats(2, 3, 9), 3), {}
    yield "avg_pool2d.default", (image, [3, 3], [2, 2], [1, 1], False, False), {}
    yield "avg_pool2d.default", (image, [3, 3], [2, 2], [1, 1], True), {}
    yield "avg_pool3d.default", (torch.rand(1, 2, 4, 4, 4), 2), {}  # of float32 only
    yield "adaptive_avg_pool1d.default", (d.floats(2, 3, 9), [3]), {}
    yield "adaptive_avg_pool2d.default", (image, [1, 1]), {}
    yield "_adaptive_avg_pool2d.default", (image, [4, 3]), {}
    yield "adaptive_avg_pool3d.default", (d.floats(1, 2, 4, 4, 4), [2, 2, 2]), {}
    yield "_adaptive_avg_pool3d.default", (d.floats(1, 2, 4, 4, 4), [1, 1, 1]), {}
    yield "upsample_nearest2d.vec", (image, None, [2.0, 2.0]), {}
    yield "upsample_nearest2d.vec", (image, [11, 5], None), {}
    yield "upsample_bilinear2d.vec", (image, [16, 18], False, None), {}
    yield "upsample_bilinear2d.vec", (image, None, True, [2.0, 2.0]), {}


def backward(d):
    """As parts of joint graphs; the indices of a pool's maxima are not read."""
    index = d.ints(5, 2, 3)
    for padding in (-1, 2):
        arguments = (d.floats(2, 3, 4), index, 5, padding, False)
        yield "embedding_dense_backward.default", arguments, {}
    image, kernel = d.floats(2, 4, 7, 8), d.floats(6, 2, 3, 3)
    plain = [2, 2], [1, 1], [1, 1], False, [0, 0], 2, [True, True, True]
    gradient = d.floats(2, 6, 4, 4)
    yield "convolution_backward.default", (gradient, image, kernel, [6], *plain), {}
    line, kernel = d.floats(2, 4, 9), d.floats(6, 4, 3)
    options = [2], [1], [1], False, [0], 1, [True, True, True]
    yield "convolution_backward.default", (d.floats(2, 6, 5), line, kernel, [6], *options), {}
    window = [2, 2], [2, 2], [0, 0]
    wide = torch.ops.aten.avg_pool2d.default(image, [3, 3], [2, 2], [1, 1], True)
    arguments = (wide, image, [3, 3], [2, 2], [1, 1], True, True, None)
    yield "avg_pool2d_backward.default", arguments, {}
    result, places = torch.ops.aten.max_pool2d_with_indices.default(image, *window)
    name = "max_pool2d_with_indices_backward.default"
    yield name, (torch.ones_like(result), image, *window, [1, 1], False, places), {}
    yield "avg_pool2d_backward.default", (result, image, *window, False, True, None), {}


def cases(group, dtype):
    """Overload, positional and keyword arguments; ``first``: only the first result is compared."""
    yield from globals()[group](Draw(dtype))
