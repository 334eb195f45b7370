# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a model of torch with the order among ties that Relax and ONNX specify."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class StableTies(TorchDispatchMode):
    """Let ``torch.topk`` choose the lowest indices among equal elements.

    Which of them it chooses is unspecified: its documentation says that the indices of tied
    elements "are not guaranteed to be stable and may vary across different invocations". All else
    runs as it is.

    Attributes
    ----------
    rows : int
        The number of rows of which ``torch.topk`` itself chooses other elements.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator, or what replaces it."""
        result = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.topk.default:
            return result
        return self._stable(result[1], *args, **(kwargs or {}))

    def _stable(
        self, given: Any, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
    ) -> tuple[Any, Any]:
        order = torch.sort(x, dim=dim, descending=largest, stable=True)
        values, chosen = (part.narrow(dim, 0, k) for part in order)
        none = torch.zeros(x.shape, dtype=torch.bool)
        others = none.scatter(dim, chosen, True) != none.scatter(dim, given, True)
        self.rows += int(others.any(dim).sum())
        return values, chosen
