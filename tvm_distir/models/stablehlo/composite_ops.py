# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""List the ops that exported composites may name, with their attribute types."""

from __future__ import annotations

from typing import Any

OPS = frozenset(
    """
abs acos acosh add arange argmax argmin argsort asin asinh astype atan atan2 atanh bitwise_and
bitwise_not bitwise_or bitwise_xor broadcast_to ceil clip collapse_sum_like collapse_sum_to
concat cos cosh cumprod cumsum divide einsum equal erf exp expand_dims flatten flip floor
floor_divide floor_mod full full_like gather_elements gather_nd grad.max_pool2d_backward
grad.nll_loss_backward grad.take_backward greater greater_equal image.resize2d isfinite isinf
isnan left_shift less less_equal log logical_and logical_not logical_or logical_xor matmul max
maximum mean min minimum mod multiply negative nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d
nn.adaptive_avg_pool3d nn.attention nn.attention_bias nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d
nn.batch_flatten nn.batch_norm nn.conv1d nn.conv1d_transpose nn.conv2d nn.conv2d_transpose
nn.conv3d nn.conv3d_transpose nn.dropout nn.gelu nn.gelu_tanh nn.group_norm nn.layer_norm
nn.leakyrelu nn.log_softmax nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.nll_loss nn.pad nn.relu
nn.rms_norm nn.silu nn.softmax nn.softplus not_equal one_hot ones ones_like outer permute_dims
power prod repeat reshape right_shift round rsqrt scatter_elements sigmoid sign sin sinh
slice_scatter sort split sqrt square squeeze stack std strided_slice subtract sum take tan tanh
tile topk tril triu trunc variance where zeros zeros_like
""".split()
)
"""Names of ops without ``relax.``: those that are written."""
_STATISTICS = ("max", "mean", "min", "prod", "std", "sum", "variance")
_UNTOLD = {
    "matmul": "relax.attrs.MatmulAttrs",
    **{name: "relax.attrs.ArgmaxArgminAttrs" for name in ("argmax", "argmin")},
    **{name: "relax.attrs.StatisticalAttrs" for name in _STATISTICS},
}
"""Types of attributes where TVM's registry of ops does not say them: without, it would crash."""


def attributes_type(name: str, op: Any) -> str:
    """Return the attribute type of an op, or an empty text if it has none."""
    return _UNTOLD.get(name, str(op.attrs_type_key))
