# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Minimize robust least squares within bounds by Levenberg and Marquardt's method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

STEP = 1e-4
"""The step of finite differences."""
ENOUGH = 1e-7
"""Relative improvement below which a fit ends."""


@dataclass(frozen=True)
class Fit:
    """Result of a fit.

    Attributes
    ----------
    point : float64 array (n,)
    jacobian : float64 array (rows, n)
        The Jacobian of the residuals, weighted as they count.
    loss : float
    """

    point: Floats
    jacobian: Floats
    loss: float


def robust(residuals: Floats) -> Floats:
    """Return the pseudo-Huber loss ``2 (sqrt(1 + r^2) - 1)`` of residuals.

    Charbonnier et al., *Deterministic edge-preserving regularization*, 1997.
    """
    losses: Floats = 2.0 * (np.sqrt(1.0 + residuals**2) - 1.0)
    return losses


def fit(
    residuals: Callable[[Floats], Floats],
    weights: Floats,
    center: Floats,
    spread: Floats,
    bounds: tuple[Floats, Floats],
    begin: Floats | None = None,
    most: int = 60,
) -> Fit:
    """Minimise ``sum weights robust(residuals(x)) + sum ((x - center) / spread)^2``.

    Parameters
    ----------
    residuals : callable
        A function from (n,) to (rows,), in units of the tolerance.
    weights : float64 array (rows,)
    center, spread : float64 arrays (n,)
        The prior.
    bounds : (float64 array (n,), float64 array (n,))
    begin : float64 array (n,), optional
        None: the center.
    most : int
        Steps.
    """
    low, high = bounds
    x = np.clip(center if begin is None else begin, low, high)

    def loss_of(point: Floats, residuals: Floats) -> float:
        prior = ((point - center) / spread) ** 2
        return float(weights @ robust(residuals) + prior.sum())

    now = residuals(x)
    loss, damping = loss_of(x, now), 1e-3
    jacobian = np.zeros((now.size, x.size))
    for _ in range(most):
        for k in range(x.size):
            moved = x.copy()
            moved[k] += STEP if x[k] + STEP <= high[k] else -STEP
            jacobian[:, k] = (residuals(moved) - now) / (moved[k] - x[k])
        counts = weights / np.sqrt(1.0 + now**2)
        gradient = jacobian.T @ (counts * now) + (x - center) / spread**2
        hessian = (jacobian.T * counts) @ jacobian + np.diag(spread**-2.0)
        free = ~(((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0)))
        better = False
        while damping < 1e8:
            damped = hessian[np.ix_(free, free)]
            damped = damped + damping * np.diag(np.diag(damped))
            tried = x.copy()
            tried[free] -= np.linalg.solve(damped, gradient[free])
            tried = np.clip(tried, low, high)
            then = residuals(tried)
            new = loss_of(tried, then)
            if new < loss:
                better = True
                break
            damping *= 4.0
        if not better:
            break
        gain, x, now, loss = (loss - new) / loss, tried, then, new
        damping = max(damping / 8.0, 1e-9)
        if gain < ENOUGH:
            break
    counts = np.sqrt(weights / np.sqrt(1.0 + now**2))
    return Fit(x, jacobian * counts[:, None], loss)
