# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Predict the times of kernels from tables of measured kernels of a serving engine.

A file of ``data/kernels`` has a table per kernel class and dtype: sizes and microseconds of
measured kernels, and the :class:`.hardware.PowerLaw` that is fitted to them. The time of a kernel
is that of the form, times the residual that is interpolated between the measured sizes (kriging
with a Matern covariance of smoothness 3/2; Rasmussen and Williams 2006, *Gaussian Processes for
Machine Learning*, equations 2.25 and 4.17). Far from all measured sizes the form alone remains. No
kernel takes less than its FLOPs at the peak or its bytes at the bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_distir.support import (
    Check,
    InvalidValue,
    NotNegative,
    Positive,
    PositiveCount,
    Text,
    check_version,
    one_of,
    read_json,
    read_model,
)

from .efficiency import LIKE
from .expert_kernels import EXPERTS, ROUTER_SKEW, expert_features, expert_work, share_of
from .faults import known_file, no_json, wrong
from .hardware import Device, PowerLaw, of_dtype
from .rates import Rate, RooflineTime

Floats = npt.NDArray[np.float64]

SCHEMA_VERSION = 1
TABLES = Path(__file__).parent / "data" / "kernels"
PRODUCT, PREFILL, DECODE = "matmul", "attention", "attention_decode"
COLUMNS = {PRODUCT: 3, PREFILL: 6, DECODE: 6, EXPERTS: 7}
"""The sizes of a kernel. Products: rows, columns and inner dim. Attention: sequences, new tokens,
tokens in the cache with the new ones, query heads, key heads, width of a head. Experts: those of
:mod:`.expert_kernels`, and the skew of the router, which tables alone have."""
HALF = ("float16", "bfloat16")
_TILE_ROWS, _TILE = 64, 128
_SCALES = {PRODUCT: 4.0, PREFILL: 8.0, DECODE: 8.0, EXPERTS: 6.0}
"""Correlation lengths of the residual, in units of the logarithms of sizes."""
_AT_ONCE = 128
"""Kernels that are interpolated at once, so that their covariances stay in a cache."""
_RECENT = 64
"""Interpolations that are remembered: models of two depths have the same kernels."""
_NUGGET = 0.02
"""Variance of the noise of measurements, relative to that of the residual."""


class KernelSizes(NamedTuple):
    """The sizes of a kernel, or of many as arrays.

    Attributes
    ----------
    dtype : str
        Of the weights of a product, or of the cache of attention.
    sizes : tuple
        Numbers, or arrays of the same shape: see :data:`COLUMNS`.
    kernel : str
        The kernel that it is a part of, as a product of experts is; empty: of its class.
    """

    dtype: str
    sizes: tuple[Any, ...]
    kernel: str = ""


@dataclass(frozen=True)
class _TableRows:
    """A table in a file; each row has the sizes of a kernel, then its microseconds."""

    kernel: Annotated[str, one_of(COLUMNS)]
    dtype: Text
    element_bytes: Positive
    form: PowerLaw
    rows: tuple[tuple[NotNegative, ...], ...]


def _check_tables(tables: tuple[_TableRows, ...]) -> tuple[_TableRows, ...]:
    for table in tables:
        lengths = {len(row) for row in table.rows}
        if lengths != {COLUMNS[table.kernel] + 1}:
            remedy = f"Give {COLUMNS[table.kernel]} sizes and the microseconds in each row."
            raise InvalidValue(f"a row of {table.kernel} has {sorted(lengths)} numbers", remedy)
    return tables


@dataclass(frozen=True)
class _TablesFile:
    """The content of a file."""

    name: Text
    engine: Text
    processors: PositiveCount
    source: Text
    tables: Annotated[tuple[_TableRows, ...], Check(_check_tables)]


def product_work(sizes: Floats, element_bytes: float) -> tuple[Floats, Floats]:
    """Return FLOPs and bytes of products of ``sizes`` (rows, 3), whose results have 2 bytes."""
    m, n, k = sizes.T
    return 2 * m * n * k, element_bytes * (m * k + n * k) + 2 * m * n


def attention_work(sizes: Floats, element_bytes: float) -> tuple[Floats, Floats]:
    """Return FLOPs and bytes of causal attention of ``sizes`` (rows, 6)."""
    batch, new, past, heads, kv_heads, width = sizes.T
    pairs = new * (past - new) + new * (new + 1) / 2
    moved = 2 * batch * past * kv_heads * width * element_bytes + 4 * batch * new * heads * width
    return 4 * batch * pairs * heads * width, moved


def work_of(kernel: str, sizes: Floats, element_bytes: float) -> tuple[Floats, Floats]:
    """Return FLOPs and bytes of measured kernels."""
    if kernel == EXPERTS:
        return expert_work(sizes, element_bytes)
    work = product_work if kernel == PRODUCT else attention_work
    return work(sizes, element_bytes)


def _features(kernel: str, sizes: Floats, processors: int) -> Floats:
    """Return what residuals depend on, (rows, features), as logarithms.

    Of products: the sizes, rows in whole tiles, and the share of the last wave of tiles that is
    idle. Of attention: sequences, length, the parts that run apart, their tokens, queries per key
    head, and width.
    """
    if kernel == EXPERTS:
        return expert_features(sizes)
    if kernel == PRODUCT:
        m, n, k = sizes.T
        waves = np.ceil(m / _TILE) * np.ceil(n / _TILE) / processors
        idle = 4 * np.minimum(np.log(np.ceil(waves) / waves), 1.0)
        padded = np.ceil(m / _TILE_ROWS) * _TILE_ROWS
        return np.stack([np.log(m), np.log(n), np.log(k), np.log(padded), idle], axis=1)
    batch, new, past, heads, kv_heads, width = sizes.T
    pairs = new * (past - new) + new * (new + 1) / 2
    length = np.log(past) if kernel == DECODE else 0.5 * np.log(2 * pairs)
    parts = np.log(batch * kv_heads)
    logs = [np.log(batch), length, parts, parts + length, np.log(heads / kv_heads)]
    return np.stack([*logs, 2 * np.log(width)], axis=1)


class KernelTable:
    """The measured kernels of a class and dtype on a device.

    Parameters
    ----------
    device : Device
    kernel : str
    dtype : str
    element_bytes : float
        Bytes of an element of weights or caches, with its part of the scales.
    law : PowerLaw
    rows : float array (kernels, sizes + 1)
    processors : int

    Attributes
    ----------
    refused : int
        Rows that are left out because they are faster than the peak or the bandwidth.
    """

    def __init__(
        self,
        device: Device,
        kernel: str,
        dtype: str,
        element_bytes: float,
        law: PowerLaw,
        rows: Floats,
        processors: int,
    ) -> None:
        self.kernel, self.dtype, self.form, self.processors = kernel, dtype, law, processors
        self.element_bytes = element_bytes
        peak = of_dtype(device.matmul_TFLOPs, dtype) * 1e12
        bandwidth = device.memory_bandwidth_GBps * 1e9
        self._floor = peak, bandwidth
        timing = (math.inf, 0.0, law.t0_us * 1e-6, 0.0, 0.0)
        self.rate = Rate(law.arithmetic * peak, law.traffic * bandwidth, *timing, law.power)
        sizes, time_s = rows[:, :-1], rows[:, -1] * 1e-6
        flops, moved = work_of(kernel, sizes, element_bytes)
        possible = time_s >= np.maximum(flops / peak, moved / bandwidth)
        self.refused = int((~possible).sum())
        self.sizes, self.time_s = sizes[possible], time_s[possible]
        self.flops, self.moved = flops[possible], moved[possible]

    @cached_property
    def _known(self) -> Floats:
        return _features(self.kernel, self.sizes, self.processors) / _SCALES[self.kernel]

    @property
    def regression(self) -> tuple[Floats, Floats]:
        """Return the covariance of the rows, and the logarithms of what the rate leaves open."""
        residual = np.log(self.time_s / self.rate.spent_s(self.flops, self.moved).total)
        return _matern(self._known, self._known) + _NUGGET * np.eye(len(residual)), residual

    @cached_property
    def _weights(self) -> Floats:
        """Return the weight of each measured kernel in the interpolation."""
        return np.asarray(np.linalg.solve(*self.regression))

    def residuals(self, sizes: Floats) -> Floats:
        """Return the logarithms of the times of kernels of ``sizes`` over those of the form."""
        features = _features(self.kernel, sizes, self.processors) / _SCALES[self.kernel]
        result = np.empty(len(features))
        for at in range(0, len(features), _AT_ONCE):
            part = slice(at, at + _AT_ONCE)
            covariance = _matern(features[part], self._known)
            covariance *= self._weights
            result[part] = covariance.sum(axis=1)
        return result

    def spent_s(self, flops: Any, moved_bytes: Any, sizes: Sequence[Any]) -> RooflineTime[Any]:
        """Return the seconds of kernels of some FLOPs and bytes, numbers or arrays (rows,).

        The work of experts follows from their sizes, without empty slots; each product takes its
        share of the time of all.
        """
        if self.kernel == EXPERTS:
            sizes = (*sizes, ROUTER_SKEW)
        table = np.stack(
            [np.broadcast_to(np.asarray(size, np.float64), np.shape(flops)) for size in sizes],
            axis=-1,
        ).reshape(-1, len(sizes))
        share: Any = 1.0
        if self.kernel == EXPERTS:
            share = share_of(table, np.ravel(flops)).reshape(np.shape(flops))
            unsharded_flops, moved = expert_work(table, self.element_bytes)
            moved = moved.reshape(np.shape(flops))
            flops = unsharded_flops.reshape(np.shape(flops))
            moved_bytes = np.minimum(moved, moved_bytes / share)  # weights of fewer bits
        time_s = self.rate.spent_s(flops, moved_bytes)
        same = (table == table[:1]).all(axis=0).tolist()
        columns = (table[: 1 if same[k] else None, k].tobytes() for k in range(len(sizes)))
        factor = np.broadcast_to(_factors(self, tuple(columns)), len(table))
        peak, bandwidth = self._floor
        least = np.maximum(flops / peak, moved_bytes / bandwidth)
        total = time_s.total * factor.reshape(np.shape(flops))
        return RooflineTime(
            share * time_s.bound, share * time_s.busy, share * np.maximum(total, least)
        )


@lru_cache(_RECENT)
def _factors(table: KernelTable, sizes: tuple[bytes, ...]) -> Floats:
    """Return the factors between the times of kernels and those of the form, (kernels,).

    Parameters
    ----------
    table : KernelTable
    sizes : tuple of bytes
        Each size of the kernels as float64: of all kernels, or a single one where all have the
        same. Where that holds for all sizes, the result is a single factor.
    """
    columns = [np.frombuffer(size) for size in sizes]
    varying = [position for position, column in enumerate(columns) if column.size > 1]
    which: Any = [0]
    if len(varying) == 1:  # a single column is sorted much faster
        keys, which = np.unique(columns[varying[0]], return_inverse=True)
    elif varying:
        keys, which = np.unique(
            np.stack([columns[position] for position in varying], axis=1),
            axis=0,
            return_inverse=True,
        )
    else:
        keys = np.zeros(1)
    distinct = np.empty((len(keys), len(columns)))
    distinct[:] = [column[0] for column in columns]
    if varying:
        distinct[:, varying] = keys.reshape(-1, len(varying))
    factors = np.exp(table.residuals(distinct))[np.ravel(which)]
    factors.flags.writeable = False
    return np.asarray(factors)


def _matern(first: Floats, second: Floats) -> Floats:
    """Return the covariance of residuals, (first, second), of scaled features."""
    total = np.zeros((len(first), len(second)))
    distances = np.empty_like(total)
    for column, other in zip(first.T, second.T, strict=True):
        if (column == column[0]).all():
            total += np.square(column[0] - other)
        else:
            np.subtract(column[:, None], other, out=distances)
            total += np.square(distances, out=distances)
    distance = np.sqrt(np.multiply(total, 3, out=total), out=total)
    np.exp(np.negative(distance, out=distances), out=distances)
    distance += 1
    distance *= distances
    return distance


class KernelTables:
    """Tables of the kernels that an engine runs on a device.

    Attributes
    ----------
    name, engine, source : str
    tables : mapping of (kernel, dtype) to KernelTable
    """

    def __init__(self, file: _TablesFile, device: Device) -> None:
        self.name, self.engine, self.source = file.name, file.engine, file.source
        self.tables: Mapping[tuple[str, str], KernelTable] = {
            (table.kernel, table.dtype): KernelTable(
                device, table.kernel, table.dtype, table.element_bytes, table.form,
                np.array(table.rows, np.float64), file.processors,
            )
            for table in file.tables
        }  # fmt: skip

    def of(self, kernel_class: str, dtype: str) -> KernelTable | None:
        """Return the table of a kernel class and dtype; None where nothing was measured."""
        kernel = kernel_class if kernel_class in COLUMNS else LIKE.get(kernel_class, kernel_class)
        names = (dtype, dtype.split("_")[0], *(HALF if dtype in HALF else ()))
        candidates = (self.tables.get((kernel, name)) for name in names)
        return next((table for table in candidates if table is not None), None)


def table_names() -> tuple[str, ...]:
    """Return the names of the files of tables that come with the package."""
    return tuple(sorted(path.stem for path in TABLES.glob("*.json")))


def load_tables(name_or_path: str, device: Device) -> KernelTables:
    """Read tables by their name, or from a JSON file.

    Raises
    ------
    HardwareError
        DIST0701 for a name that is none, DIST0702 for a file that is no JSON, DIST0703 for an
        unknown, missing or wrong value.
    """
    absent = "there are no tables of kernels"
    path = known_file(name_or_path, TABLES, table_names(), absent, "kernel_tables")
    content = check_version(
        read_json(path, no_json, repeated=wrong), str(path), wrong, SCHEMA_VERSION
    )
    return KernelTables(read_model(_TablesFile, content, str(path), wrong), device)
