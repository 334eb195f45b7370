# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the experts of a mixture that work on few tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def active_experts(
    local_experts: npt.ArrayLike, experts: int, top_k: int, tokens: npt.ArrayLike
) -> npt.NDArray[np.int64]:
    """Return how many experts of a device work in a step, by expectation, rounded up.

    Each token selects ``top_k`` of all ``experts``, each as likely as the others and independent of
    other tokens: an expert is not selected with probability ``(1 - top_k / experts)^tokens``. The
    expectation is rounded up, since the device with the most experts to read ends last.

    Parameters
    ----------
    local_experts : array_like of int
        The experts of the device.
    experts, top_k : int
    tokens : array_like of int
        The tokens that select experts.

    Returns
    -------
    int64 array
        From 1 to ``local_experts``.
    """
    with np.errstate(divide="ignore"):  # all experts work on each token
        idle = np.exp(np.asarray(tokens) * np.log1p(-top_k / experts))
    expected = np.ceil(np.asarray(local_experts) * (1 - idle) - 1e-9).astype(np.int64)
    return np.asarray(np.clip(expected, 1, np.asarray(local_experts)), np.int64)
