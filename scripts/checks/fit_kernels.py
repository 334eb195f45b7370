#!/usr/bin/env python
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fit the forms of devices' kernels to measured kernels, and print errors out of fold.

``python scripts/checks/fit_kernels.py [--update] FILE.csv ...`` reads products (columns ``m``,
``n``, ``k``), attention (``isl``, ``num_heads``, ``head_dim``; ``phase`` or ``direction``) and the
tables of SimuMax (``op``, ``shape``, ``measured_efficiency``), whose first column names the device.
``--update`` writes the forms into the files of the devices. Rows that are faster than their FLOPs
at the peak or their bytes at the bandwidth are refused and counted.

Products of training in float8 and MXFP8 have the form of those in bfloat16, sped up as they are in
``benchmarks/measured/products_narrow.csv``; the form ``float8`` is that of a serving engine.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from tvm_distir.hardware.systems.device_reader import DEVICES, load_device
from tvm_distir.hardware.systems.hardware import Device, PowerLaw, of_dtype
from tvm_distir.hardware.systems.rates import Rate

Floats = npt.NDArray[np.float64]

DEVICE_NAMES = {
    "a100_sxm": "a100-sxm", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200",
    "A100-PCIe": "a100-pcie", "B200-SXM": "b200",
}  # fmt: skip
DTYPES = {"bfloat16": "default", "fp8": "float8", "nvfp4": "nvfp4"}
"""The dtypes of tables that have forms, and the keys of these."""
ALIKE = {"nvfp4": ("float4_e2m1fn",)}
"""Dtypes that are not measured, and are taken to be like others."""
NARROW = Path(__file__).parents[2] / "benchmarks" / "measured" / "products_narrow.csv"
ARCHITECTURES = {"h100-sxm": "hopper", "h200-sxm": "hopper", "b200": "blackwell"}
"""The devices whose products in narrow dtypes have the speedups of an architecture."""
TRAINING = ("float8_tensor", "float8_block", "mxfp8")
"""Dtypes of the products of training: float8 with a scale per tensor or per block, and MXFP8."""
MULTIPLIED_AS = {
    ("hopper", "float8_tensor"): "float8", ("blackwell", "float8_tensor"): "float8",
    ("hopper", "mxfp8"): "float8", ("blackwell", "float8_block"): "mxfp8",
}  # fmt: skip
"""The dtype of the rows of ``NARROW`` for a dtype: of another name, or that the library uses."""
POWER_LIMITED = "h100-sxm-500w"
"""A device whose sustained rate is that of its products in ``NARROW``."""
BYTES = {"bfloat16": 2.0, "fp8": 1.0, "nvfp4": 0.5 + 1 / 16}
FOLDS = 5
LEAST, MOST = (0.0, 0.02, 0.02, 1.0), (20.0, 1.0, 1.0, 8.0)
BEGIN = ((5.0, 0.6, 0.7, 1.2), (3.0, 0.6, 0.5, 3.0))
TOLERANCE = 0.05
"""Relative errors beyond it count linearly."""
LONG_US, SHORT_US = 10_000.0, (200.0, 3000.0)
"""Products that run long enough to be limited in power, and those they are compared with."""


class Kernel(NamedTuple):
    """A measured kernel; errors are grouped by ``table``, and rows are fitted if ``fits``."""

    device: str
    kernel_class: str
    dtype: str
    table: str
    flops: float
    moved_bytes: float
    time_us: float
    fits: bool = True


class Fit(NamedTuple):
    """The kernels of a device, class and dtype, and their form."""

    kernels: list[Kernel]
    refused: int
    form: PowerLaw
    errors: Floats


def products(row: Mapping[str, str], device: str) -> Iterator[Kernel]:
    """Read a product: ``m`` rows times a weight of ``n`` and ``k``."""
    dtype = row.get("dtype") or row["gemm_dtype"]
    if dtype not in DTYPES:
        return
    engine = row.get("engine", "training")
    m, n, k = (int(row[key]) for key in "mnk")
    moved = BYTES[dtype] * (m * k + n * k) + 2.0 * m * n
    # TensorRT-LLM's rows of narrow types hold more than the product: 14 us at the least.
    fits = dtype == "bfloat16" or engine == "vllm"
    yield Kernel(
        device, "matmul", DTYPES[dtype], f"products {engine}", 2.0 * m * n * k, moved,
        float(row["time_us"]), fits,
    )  # fmt: skip


def attention(row: Mapping[str, str], device: str) -> Iterator[Kernel]:
    """Read causal attention of a whole sequence, or of a token with a cache."""
    batch, length, heads, width = (
        int(row[key]) for key in ("batch_size", "isl", "num_heads", "head_dim")
    )
    kv_heads = int(row["num_key_value_heads"]) or heads
    phase, engine = row.get("phase", "forward"), row.get("engine", "training")
    dtype = row.get("kv_cache_dtype") or row["dtype"]
    time_us = float(row["time_us"])
    if phase == "decode":
        length += int(row["step"])
        moved = 4.0 * batch * heads * width + 2 * BYTES[dtype] * batch * length * kv_heads * width
        flops = 4.0 * batch * heads * width * length
        yield Kernel(
            device, "attention_decode", DTYPES[dtype], f"decode {engine}", flops, moved, time_us
        )
        return
    flops = 2.0 * batch * heads * width * length * (length + 1)
    moved = 4.0 * batch * length * width * (heads + kv_heads)
    yield Kernel(device, "attention", DTYPES[dtype], f"{phase} {engine}", flops, moved, time_us)


def simumax(row: Mapping[str, str], device: str) -> Iterator[Kernel]:
    """Read a row of SimuMax, which counts causal attention whole."""
    shape = dict(part.strip().split("=") for part in row["shape"].split(","))
    efficiency = float(row["measured_efficiency"])
    peak = float(row["peak_tflops"]) * 1e6
    if row["op"] == "matmul":
        batch, m, n, k = (int(shape[key]) for key in "bmnk")
        out = {"bf16": 2, "fp32": 4}[shape["out_dtype"]]
        flops = 2.0 * batch * m * n * k
        passes = 2 if shape["accumulate"] == "True" else 1
        moved = float(batch * (2 * m * k + 2 * k * n + out * passes * m * n))
        time_us = flops / (efficiency * peak)
        name = "matmul" if device == "a100-pcie" else "sustained"
        yield Kernel(device, name, "default", "products SimuMax", flops, moved, time_us)
    elif row["op"] in ("sdp_fwd", "sdp_bwd"):
        batch, length, heads, kv_heads, width, v_width = (
            int(shape[key])
            for key in ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim")
        )
        forward = row["op"] == "sdp_fwd"
        times = 1.0 if forward else 2.5
        flops = times * batch * heads * (width + v_width) * length * (length + 1)
        moved = 2.0 * batch * length * (heads + kv_heads) * (width + v_width)
        moved *= 1.0 if forward else 2.0
        time_us = 2 * flops / (efficiency * peak)
        name = "attention" if forward else "attention_backward"
        yield Kernel(
            device, name, "default", f"{'for' if forward else 'back'}ward SimuMax", flops, moved,
            time_us, not forward or device == "a100-pcie",
        )  # fmt: skip


def read(paths: Iterable[Path]) -> Iterator[Kernel]:
    """Read all kernels of all files."""
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                device = DEVICE_NAMES[row.get("gpu") or row["system"]]
                if "measured_efficiency" in row:
                    yield from simumax(row, device)
                elif "isl" in row:
                    yield from attention(row, device)
                else:
                    yield from products(row, device)


def columns(kernels: Iterable[Kernel]) -> tuple[Floats, Floats, Floats]:
    """Return FLOPs, bytes and microseconds as arrays."""
    table = np.array([(k.flops, k.moved_bytes, k.time_us) for k in kernels], float).reshape(-1, 3)
    flops, moved, time_us = table.T
    return flops, moved, time_us


def rate(device: Device, dtype: str, numbers: Iterable[float], burst_us: float = 0.0) -> Rate:
    """Return the rate of a form; a fifth number is what products in a step run at."""
    t0_us, arithmetic, traffic, power, *rest = numbers
    slower = rest[0] if rest else 1.0
    alone = arithmetic * of_dtype(device.matmul_TFLOPs, dtype.replace("default", "bfloat16")) * 1e12
    bandwidth = traffic * device.memory_bandwidth_GBps * 1e9
    saved = burst_us * 1e-6 * (1 / slower - 1)
    return Rate(alone * slower, bandwidth, alone, saved, t0_us * 1e-6, 0.0, 0.0, power)


def solve(device: Device, dtype: str, kernels: list[Kernel]) -> Floats:
    """Return the four numbers of the form of least error."""
    flops, moved, time_us = columns(kernels)

    def residuals(numbers: Floats) -> Floats:
        whole = rate(device, dtype, numbers).spent_s(flops, moved).total
        return np.asarray(np.log(1e6 * whole / time_us))

    solutions = [
        least_squares(residuals, begin, bounds=(LEAST, MOST), loss="soft_l1", f_scale=TOLERANCE)
        for begin in BEGIN
    ]
    return np.asarray(min(solutions, key=lambda single: float(single.cost)).x)


def predicted(
    device: Device, dtype: str, numbers: Iterable[float], kernels: list[Kernel]
) -> Floats:
    """Return the errors of the times of a form, in percent."""
    flops, moved, time_us = columns(kernels)
    whole = rate(device, dtype, numbers).spent_s(flops, moved).total
    return np.asarray(100 * (1e6 * whole / time_us - 1))


def fitted(device: Device, dtype: str, kernels: list[Kernel], source: str) -> Fit:
    """Fit a form, and take the error of each kernel from a fit without its fold."""
    peak = of_dtype(device.matmul_TFLOPs, dtype.replace("default", "bfloat16")) * 1e6
    bandwidth = device.memory_bandwidth_GBps * 1e3
    possible = [k for k in kernels if k.time_us >= max(k.flops / peak, k.moved_bytes / bandwidth)]
    folds = np.random.default_rng(0).integers(0, FOLDS, len(possible))
    errors = np.zeros(len(possible))
    for fold in range(FOLDS):
        train = [k for k, at in zip(possible, folds, strict=True) if at != fold and k.fits]
        test = [k for k, at in zip(possible, folds, strict=True) if at == fold]
        errors[folds == fold] = predicted(device, dtype, solve(device, dtype, train), test)
    fit = [k for k in possible if k.fits]
    numbers = solve(device, dtype, fit)
    counts = Counter(k.table for k in fit)
    rows = ", ".join(f"{count} of {table}" for table, count in counts.items())
    form = PowerLaw(*(float(f"{x:.4g}") for x in numbers), f"{source}: {rows}")
    return Fit(possible, len(kernels) - len(possible), form, errors)


def narrow_products() -> list[dict[str, str]]:
    """Read the products in narrow dtypes, and the same in bfloat16."""
    with NARROW.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def narrow_form(name: str, dtype: str, form: PowerLaw) -> PowerLaw:
    """Return the form of a narrow dtype, from that of bfloat16 and the median speedup."""
    architecture = ARCHITECTURES[name]
    measured = MULTIPLIED_AS.get((architecture, dtype), dtype)
    times: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in narrow_products():
        if row["architecture"] == architecture:
            times[row["device"], row["products"]][row["dtype"]] = float(row["time_ms"])
    speedups = [
        by_dtype["bfloat16"] / by_dtype[measured]
        for by_dtype in times.values()
        if measured in by_dtype
    ]
    speedup = float(np.median(speedups))
    peaks = load_device(name).matmul_TFLOPs
    most = of_dtype(peaks, dtype) / of_dtype(peaks, "bfloat16")
    source = f"the form of bfloat16, {speedup:.3f} times as fast"
    if measured != dtype:
        source += f", as {measured}"
    source += f" (median of {len(speedups)} on {architecture}, {NARROW.name})"
    arithmetic = float(f"{form.arithmetic * min(speedup / most, 1.0):.4g}")
    return dataclasses.replace(form, arithmetic=arithmetic, source=source)


def power_limited(form: PowerLaw) -> tuple[float, float, int]:
    """Return what products run at under a power limit, the largest error in percent, and a count.

    ``form`` is that of the device without the limit.
    """
    device = load_device(POWER_LIMITED)
    peak = of_dtype(device.matmul_TFLOPs, "bfloat16") * 1e12
    rates = [
        float(row["flops"]) / (1e-3 * float(row["time_ms"])) / (form.arithmetic * peak)
        for row in narrow_products()
        if row["dtype"] == "bfloat16" and row["power_w"] == f"{device.watts:.0f}"
    ]
    sustained = float(np.median(rates))
    return sustained, 100 * max(abs(sustained / rate - 1) for rate in rates), len(rates)


def in_steps(device: Device, form: PowerLaw, kernels: list[Kernel]) -> tuple[float, float, float]:
    """Return what products in a step run at, after which burst in us, and the median error."""
    flops, moved, time_us = columns(kernels)
    known = (form.t0_us, form.arithmetic, form.traffic, form.power)

    def residuals(numbers: Floats) -> Floats:
        duration = rate(device, "default", (*known, numbers[0]), numbers[1]).spent_s(flops, moved)
        return np.asarray(np.log(1e6 * duration.total / time_us))

    bounds = ((0.3, 0.0), (1.0, 1000.0))
    result = least_squares(
        residuals, (0.75, 50.0), bounds=bounds, loss="soft_l1", f_scale=TOLERANCE
    )
    error = float(np.median(np.abs(np.expm1(residuals(result.x)))))
    return float(result.x[0]), float(result.x[1]), 100 * error


def long_products(device: Device, kernels: list[Kernel]) -> float:
    """Return the efficiency of products of over 10 ms to that of 0.2 to 3 ms, by medians."""
    kernels = [k for k in kernels if k.table == "products training"]
    flops, _, time_us = columns(kernels)
    rates = flops / time_us
    short = (time_us >= SHORT_US[0]) & (time_us < SHORT_US[1])
    return float(np.median(rates[time_us >= LONG_US]) / np.median(rates[short]))


def write(name: str, kernel_class: str, dtype: str, form: PowerLaw) -> None:
    """Write a form into the file of a device."""
    path = DEVICES / f"{name}.json"
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    by_dtype = data.setdefault("kernel_times", {}).setdefault(kernel_class, {})
    by_dtype[dtype] = dataclasses.asdict(form)
    for like in ALIKE.get(dtype, ()):
        by_dtype[like] = {**by_dtype[dtype], "source": f"assumed as {dtype}"}
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Fit, print a table in Markdown, and write on request."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--update", action="store_true", help="write the files of the devices")
    parser.add_argument("--source", default="scripts/checks/fit_kernels.py")
    arguments = parser.parse_args()
    groups: dict[tuple[str, str, str], list[Kernel]] = defaultdict(list)
    for kernel in read(arguments.files):
        groups[kernel.device, kernel.kernel_class, kernel.dtype].append(kernel)
    print(
        "| device | class | dtype | rows | kernels | refused | median error, % | mean |\n"
        "|--|--|--|--|--:|--:|--:|--:|"
    )
    fits: dict[tuple[str, str, str], Fit] = {}
    for key, kernels in sorted(groups.items()):
        name, kernel_class, dtype = key
        if kernel_class == "sustained" or not any(kernel.fits for kernel in kernels):
            continue
        device = load_device(name)
        fit = fits[key] = fitted(device, dtype, kernels, arguments.source)
        for table in sorted({k.table for k in fit.kernels}):
            errors = np.abs(
                [e for k, e in zip(fit.kernels, fit.errors, strict=True) if k.table == table]
            )
            mark = "" if any(k.fits for k in kernels if k.table == table) else " (not fitted)"
            print(
                f"| {name} | {kernel_class} | {dtype} | {table}{mark} | {len(errors)} "
                f"| {fit.refused} | {np.median(errors):.1f} | {errors.mean():.1f} |"
            )
        if arguments.update:
            write(name, kernel_class, dtype, fit.form)
    for name in ARCHITECTURES:
        default = fits.get((name, "matmul", "default"))
        if default is None:
            continue
        for dtype in TRAINING:
            form = narrow_form(name, dtype, default.form)
            print(f"{name} matmul {dtype}: {form}")
            if arguments.update:
                write(name, "matmul", dtype, form)
        if name == "h100-sxm":
            factor, error, count = power_limited(default.form)
            print(f"{POWER_LIMITED}: sustained {factor:.4f}, largest error {error:.1f} %, {count}")
    for (name, kernel_class, dtype), fit in fits.items():
        print(f"{name} {kernel_class} {dtype}: {fit.form}")
    for (name, kernel_class, _), kernels in sorted(groups.items()):
        device = load_device(name)
        if kernel_class == "sustained" and (name, "matmul", "default") in fits:
            form = fits[name, "matmul", "default"].form
            factor, burst_us, error = in_steps(device, form, kernels)
            print(f"{name}: sustained {factor:.4f} after {burst_us:.1f} us, error {error:.1f} %")
        if kernel_class == "matmul" and any(k.table == "products training" for k in kernels):
            print(f"{name}: long products to short ones: {long_products(device, kernels):.3f}")


if __name__ == "__main__":
    main()
