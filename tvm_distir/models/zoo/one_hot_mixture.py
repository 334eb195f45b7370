# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define experts to which products with one-hot tables move tokens, in relax.nn."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.relax.frontend import nn

from .mixture import Mixture
from .transformer_blocks import Tensor, back_to


class OneHotMixture(Mixture):
    """Experts whose slots one product fills with tokens, and another one empties.

    Tokens take the same slots as those of :class:`.mixture.Mixture`.
    """

    def mixed(self, x: Any, gates: Any, indices: Any) -> Any:
        """Return the sums of the results of experts, weighted by the gates of their tokens."""
        groups, seq, _ = x.shape
        slots = self.config.experts * self.config.capacity
        dispatch, combine = self._tables(gates, indices, x.dtype)
        into = nn.op.permute_dims(nn.op.reshape(dispatch, (groups, seq, slots)), [0, 2, 1])
        outputs = self.by_expert(nn.op.matmul(into, x, name="dispatched"))
        combine = nn.op.reshape(combine, (groups, seq, slots))
        return nn.op.matmul(combine, outputs, name="combined")

    def _tables(self, gates: Any, indices: Any, dtype: str) -> tuple[Any, Any]:
        """Return the tables of the choices of tokens, (groups, seq, top_k).

        Returns
        -------
        dispatch : Tensor
            (groups, seq, experts, capacity), 1 where the token takes the slot.
        combine : Tensor
            The same shape: the token's gate there.
        """
        groups, seq, k = indices.shape
        experts = self.config.experts
        chosen = _one_hot(indices, experts)
        order = nn.op.permute_dims(chosen, [0, 2, 1, 3])
        order = nn.op.reshape(order, (groups, k * seq, experts))
        before = nn.op.reshape(
            nn.op.cumsum(order, axis=1, exclusive=True), (groups, k, seq, experts)
        )
        before = nn.op.permute_dims(before, [0, 2, 1, 3])
        place = nn.op.sum(nn.op.multiply(before, chosen), axis=3, name="place")
        slots = _one_hot(nn.op.astype(place, "int32"), self.config.capacity)
        pairs = nn.op.permute_dims(chosen, [0, 1, 3, 2])
        weighted = nn.op.multiply(pairs, nn.op.unsqueeze(gates, 2))
        dispatch = nn.op.matmul(pairs, slots, name="dispatch")
        combine = nn.op.matmul(weighted, slots, name="combine")
        return back_to(dispatch, dtype), back_to(combine, dtype)


def _one_hot(indices: Any, size: int) -> Any:
    """Map int32 (...) to float32 (..., size), with 1 at the index if it is in range."""
    numbers = Tensor.from_const(np.arange(size, dtype="int32"))
    same = nn.op.equal(nn.op.unsqueeze(indices, indices.ndim), numbers)
    return nn.op.astype(same, "float32")
