# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Time single kernels of PyTorch on a GPU, as rows for ``calibrate`` and ``fit_kernels.py``."""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

TOKENS = (128, 512, 2048, 4096, 8192, 16384)
WEIGHTS = (
    (768, 2304), (768, 768), (768, 3072), (3072, 768), (1024, 4096), (2048, 2048), (2048, 8192),
    (4096, 4096), (4096, 14336), (14336, 4096), (8192, 8192), (768, 50257),
)  # fmt: skip
"""Rows and columns of weights: layers of GPT-2, of Llama of 1 and 8 billion weights."""
HEADS = ((12, 12, 64), (16, 16, 64), (32, 8, 64), (32, 8, 128), (32, 32, 128))
"""Query heads, key heads and width."""
LENGTHS = ((8, 512), (8, 1024), (4, 2048), (2, 4096), (1, 8192))
"""Batch and positions."""
ELEMENTS = tuple(1 << n for n in range(16, 29, 2))
LEAST_S = 0.02


def median_us(call: Callable[[], Any], device: str, repeats: int = 5) -> float:
    """Return the median time of a call in microseconds: calls follow each other on the device."""
    import torch

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def elapsed_s(count: int) -> float:
        wait()
        begin_s = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        return time.perf_counter() - begin_s

    call()
    once_s = max(elapsed_s(3) / 3, 1e-7)
    count = max(1, min(2000, round(LEAST_S / once_s)))
    return 1e6 * statistics.median(elapsed_s(count) / count for _ in range(repeats))


def products(device: str, few: bool) -> Iterator[dict[str, Any]]:
    """Yield rows of matrix products."""
    import torch

    for m in TOKENS[:1] if few else TOKENS:
        for k, n in WEIGHTS[:2] if few else WEIGHTS:
            a = torch.randn(m, k, device=device).bfloat16()
            b = torch.randn(k, n, device=device).bfloat16()
            out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
            time_us = median_us(lambda a=a, b=b, out=out: torch.matmul(a, b, out=out), device)
            yield {
                "m": m, "k": k, "n": n, "time_us": round(time_us, 3), "dtype": "bfloat16",
                "out_dtype": "bfloat16", "accumulate": 0, "gpu": "h100_sxm",
            }  # fmt: skip


def attention(device: str, few: bool) -> Iterator[dict[str, Any]]:
    """Yield rows of causal attention, forward and with its gradient."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    for heads, kv_heads, width in HEADS[:1] if few else HEADS:
        for batch, length in LENGTHS[:1] if few else LENGTHS:
            q, k, v = (
                torch.randn(batch, count, length, width, device=device).bfloat16().requires_grad_()
                for count in (heads, kv_heads, kv_heads)
            )

            def forward(q: Any = q, k: Any = k, v: Any = v) -> Any:
                return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

            with torch.no_grad():
                times_us = {"forward": median_us(forward, device)}
            result = forward()
            grad = torch.ones_like(result)

            def backward(q: Any = q, k: Any = k, v: Any = v, r: Any = result, g: Any = grad) -> Any:
                return torch.autograd.grad(r, (q, k, v), g, retain_graph=True)

            times_us["backward"] = median_us(backward, device)
            for direction, time_us in times_us.items():
                yield {
                    "gpu": "h100_sxm", "dtype": "bfloat16", "direction": direction, "causal": 1,
                    "batch_size": batch, "isl": length, "num_heads": heads,
                    "num_key_value_heads": kv_heads, "head_dim": width,
                    "time_us": round(time_us, 3),
                }  # fmt: skip


def elementwise(device: str, few: bool) -> Iterator[dict[str, Any]]:
    """Yield rows of kernels that move bytes: a sum, an activation, a norm and a softmax."""
    import torch
    from torch.nn import functional

    for count in ELEMENTS[:1] if few else ELEMENTS:
        x = torch.randn(count // 1024, 1024, device=device).bfloat16()
        y, out = torch.randn_like(x), torch.empty_like(x)
        calls = {
            "add": (lambda x=x, y=y, out=out: torch.add(x, y, out=out), 3),
            "gelu": (lambda x=x: functional.gelu(x, approximate="tanh"), 2),
            "layer_norm": (lambda x=x: functional.layer_norm(x, (1024,)), 2),
            "softmax": (lambda x=x: functional.softmax(x, -1), 2),
        }
        for op, (call, passes) in calls.items():
            moved_bytes = passes * 2 * count
            time_us = median_us(call, device)
            yield {
                "op": op, "dtype": "bfloat16", "moved_bytes": moved_bytes,
                "time_us": round(time_us, 3), "GBps": round(moved_bytes / time_us / 1e3, 1),
            }  # fmt: skip


TABLES: dict[str, Callable[[str, bool], Iterable[dict[str, Any]]]] = {
    "products": products,
    "attention": attention,
    "elementwise": elementwise,
}


def write_tables(out: Path, device: str, few: bool, deadline_s: float) -> list[str]:
    """Time all kernels until the deadline of the monotonic clock; returns lines for a table."""
    lines = []
    for name, rows in TABLES.items():
        count = 0
        with (out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = None
            for row in rows(device, few):
                writer = writer or csv.DictWriter(file, list(row))
                if count == 0:
                    writer.writeheader()
                writer.writerow(row)
                count += 1
                if time.monotonic() > deadline_s:
                    break
        lines.append(f"{name}.csv: {count} rows")
    return lines
