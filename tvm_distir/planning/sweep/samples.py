# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose the rows to take through the pipeline, which determine all others."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

HELD_OUT = 4
"""Samples beyond those that determine exponents: they confirm, and find terms of sums."""
_CLOSE = 1e-6


def spanning(symbols: Ints, known: Sequence[int]) -> list[int] | None:
    """Return the columns that determine monomials at all columns, and :data:`HELD_OUT` more.

    The exponents of all rows are determined where the logarithms of the chosen rows, with the first
    of them as origin, span those of all. The other samples are far from each other.

    Parameters
    ----------
    symbols : int64 array (symbols, rows)
    known : sequence of int
        Columns that are taken anyway.

    Returns
    -------
    list of int or None
        The known ones first; None where so many do not differ.
    """
    if not symbols.shape[0]:
        return None
    _, first = np.unique(symbols, axis=1, return_index=True)
    first = np.unique(np.concatenate((first, np.array(known, np.int64))))
    logs = np.log(symbols[:, first].astype(np.float64)).T
    position = {int(column): number for number, column in enumerate(first)}
    chosen = [position[column] for column in known]
    if not chosen:
        chosen = [int(np.argmin(np.linalg.norm(logs - np.median(logs, axis=0), axis=1)))]
    rest = logs - logs[chosen[0]]
    for index in chosen[1:]:
        rest = _without(rest, rest[index])
    rank = 0
    while True:
        far = np.linalg.norm(rest, axis=1)
        index = int(np.argmax(far))
        if far[index] < _CLOSE:
            break
        chosen.append(index)
        rest = _without(rest, rest[index])
        rank += 1
    least = np.linalg.matrix_rank(logs[chosen] - logs[chosen[0]], _CLOSE) + 1 + HELD_OUT
    distances = np.min([np.linalg.norm(logs - logs[index], axis=1) for index in chosen], axis=0)
    while len(chosen) < least:
        index = int(np.argmax(distances))
        if distances[index] < _CLOSE:
            return None
        chosen.append(index)
        distances = np.minimum(distances, np.linalg.norm(logs - logs[index], axis=1))
    return [int(first[index]) for index in chosen]


def _without(rest: Floats, direction: Floats) -> Floats:
    size = float(np.linalg.norm(direction))
    if size < _CLOSE:
        return rest
    unit = direction / size
    return np.asarray(rest - np.outer(rest @ unit, unit), np.float64)


def best_split(
    features: Floats, samples: Sequence[int], kinds: Sequence[object]
) -> npt.NDArray[np.bool_] | None:
    """Split rows by a feature so that kinds of samples are separated best.

    Parameters
    ----------
    features : float array (features, rows)
    samples : sequence of int
        Rows whose kinds are known.
    kinds : sequence

    Returns
    -------
    bool array (rows,) or None
        None where no feature tells kinds apart.
    """
    number = {kind: k for k, kind in enumerate(dict.fromkeys(kinds))}
    kind_of = np.array([number[kind] for kind in kinds])
    best, split = _mixed(kind_of), None
    for feature in features:
        values = feature[list(samples)]
        for low, high in itertools.pairwise(np.unique(values).tolist()):
            below = values <= low
            parts = [kind_of[below], kind_of[~below]]
            mixed = sum(_mixed(part) * part.size for part in parts) / kind_of.size
            if mixed < best - _CLOSE:
                best, split = mixed, feature <= (low + high) / 2
    return split


def _mixed(kinds: Collection[int] | npt.NDArray[np.int64]) -> float:
    """Return the probability that two of some values differ."""
    counts = np.bincount(np.asarray(kinds, np.int64))
    share = counts / max(counts.sum(), 1)
    return float(1.0 - (share**2).sum())
