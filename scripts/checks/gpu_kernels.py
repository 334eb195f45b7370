# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Time single kernels of PyTorch on a GPU, as rows for ``calibrate`` and ``fit_kernels.py``."""

from __future__ import annotations

import contextlib
import csv
import statistics
import time
import traceback
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
LOGITS = ((4096, 50304), (4096, 128256), (8192, 128256))
"""Tokens and words of the vocabulary."""
GPU = "h100_sxm"
"""The name of the device in the rows, as ``fit_kernels.py`` reads it."""
LEAST_S, GRAPH_S = 0.02, 0.002
"""The time of calls that are timed together, and of those in a CUDA graph."""


def median_us(call: Callable[[], Any], device: str, repeats: int = 5) -> float:
    """Return the median time of a call in microseconds.

    Calls follow each other on the device: in a CUDA graph where the call can be captured, so that
    the time is that of kernels and not of the host.
    """
    call()
    if device == "cuda":
        with contextlib.suppress(Exception):
            replay, count = _captured(call)
            return _median_s(replay, device, repeats) * 1e6 / count
    return _median_s(call, device, repeats) * 1e6


def _median_s(call: Callable[[], Any], device: str, repeats: int) -> float:
    """Return the median of the time of a call among calls that follow each other."""
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

    once_s = max(elapsed_s(3) / 3, 1e-7)
    count = max(1, min(2000, round(LEAST_S / once_s)))
    return statistics.median(elapsed_s(count) / count for _ in range(repeats))


def _captured(call: Callable[[], Any]) -> tuple[Callable[[], Any], int]:
    """Return the replay of a CUDA graph of calls, and their number."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        begin_s = time.perf_counter()
        call()
        torch.cuda.synchronize()
        once_s = time.perf_counter() - begin_s
    torch.cuda.current_stream().wait_stream(stream)
    count = max(1, min(50, round(GRAPH_S / once_s)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return graph.replay, count


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
                "out_dtype": "bfloat16", "accumulate": 0, "gpu": GPU,
            }  # fmt: skip


def products_float8(device: str, few: bool) -> Iterator[dict[str, Any]]:
    """Yield rows of products of float8 with a scale per tensor."""
    import torch

    if device != "cuda":
        return
    one = torch.ones((), device=device)
    for m in TOKENS:
        for k, n in WEIGHTS[5:11]:
            a = torch.randn(m, k, device=device).to(torch.float8_e4m3fn)
            b = torch.randn(n, k, device=device).to(torch.float8_e4m3fn).t()

            def product(a: Any = a, b: Any = b) -> Any:
                return torch._scaled_mm(
                    a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
                )

            yield {
                "m": m, "k": k, "n": n, "time_us": round(median_us(product, device), 3),
                "dtype": "fp8", "out_dtype": "bfloat16", "accumulate": 0, "gpu": GPU,
            }  # fmt: skip


def attention(device: str, few: bool) -> Iterator[dict[str, Any]]:
    """Yield rows of causal attention by each library, forward and with its gradient."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    backends = {"flash": SDPBackend.FLASH_ATTENTION}
    if device == "cuda":
        backends["cudnn"] = SDPBackend.CUDNN_ATTENTION
    for heads, kv_heads, width in HEADS[:1] if few else HEADS:
        for batch, length in LENGTHS[:1] if few else LENGTHS:
            q, k, v = (
                torch.randn(batch, count, length, width, device=device).bfloat16().requires_grad_()
                for count in (heads, kv_heads, kv_heads)
            )

            def forward(q: Any = q, k: Any = k, v: Any = v) -> Any:
                return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

            for library, backend in backends.items():
                with sdpa_kernel(backend):
                    with torch.no_grad():
                        times_us = {"forward": median_us(forward, device)}
                    result = forward()
                    grad = torch.ones_like(result)

                    def backward(r: Any = result, g: Any = grad, x: Any = (q, k, v)) -> Any:
                        return torch.autograd.grad(r, x, g, retain_graph=True)

                    times_us["backward"] = median_us(backward, device)
                for direction, time_us in times_us.items():
                    yield {
                        "gpu": GPU, "library": library, "dtype": "bfloat16",
                        "direction": direction, "causal": 1, "batch_size": batch, "isl": length,
                        "num_heads": heads, "num_key_value_heads": kv_heads, "head_dim": width,
                        "time_us": round(time_us, 3),
                    }  # fmt: skip


def _gradient(call: Callable[..., Any], *inputs: Any) -> Callable[[], Any]:
    """Return a call of the gradient of a function at the inputs."""
    import torch

    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    result = call(*leaves)
    grad = torch.ones_like(result)
    floats = [x for x in leaves if x.requires_grad]
    return lambda: torch.autograd.grad(result, floats, grad, retain_graph=True)


def _memory_calls(tokens: int, device: str) -> Iterator[tuple[str, Callable[[], Any], float]]:
    """Yield an op, its call and the bytes that it has to move, of ``tokens`` rows of 4,096."""
    import torch
    from torch.nn import functional

    size = (tokens, 4096)
    x, y = (torch.randn(size, device=device).bfloat16() for _ in range(2))
    wide = x.float()
    weight = torch.ones(4096, device=device).bfloat16()
    n = 2.0 * x.numel()
    yield "copy", x.clone, 2 * n
    yield "cast", x.float, 3 * n
    yield "transpose", lambda: x.t().contiguous(), 2 * n
    yield "add", lambda: x + y, 3 * n
    yield "add_float32", lambda: wide + wide, 6 * n
    yield "silu", lambda: functional.silu(x), 2 * n
    yield "gelu", lambda: functional.gelu(x, approximate="tanh"), 2 * n
    yield "gelu_backward", _gradient(lambda v: functional.gelu(v, approximate="tanh"), x), 3 * n
    yield "softmax", lambda: functional.softmax(x, -1), 2 * n
    yield "softmax_backward", _gradient(lambda v: functional.softmax(v, -1), x), 3 * n
    yield "layer_norm", lambda: functional.layer_norm(x, (4096,), weight, weight), 2 * n
    norm = _gradient(lambda v, w: functional.layer_norm(v, (4096,), w, w), x, weight)
    yield "layer_norm_backward", norm, 3 * n
    yield "rms_norm", lambda: functional.rms_norm(x, (4096,), weight), 2 * n
    norm = _gradient(lambda v, w: functional.rms_norm(v, (4096,), w), x, weight)
    yield "rms_norm_backward", norm, 3 * n
    if device == "cuda":
        yield "gated_compiled", _compiled(lambda a, b: functional.silu(a) * b, x, y), 3 * n
        yield "rms_norm_compiled", _compiled(_rms_norm, x, weight), 2 * n
        yield "residual_norm_compiled", _compiled(_residual_norm, x, y, weight), 4 * n


def _rms_norm(x: Any, weight: Any) -> Any:
    wide = x.float()
    scale = (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return (wide * scale).to(x.dtype) * weight


def _residual_norm(x: Any, y: Any, weight: Any) -> Any:
    total = x + y
    return total, _rms_norm(total, weight)


_COMPILED: dict[Any, Any] = {}


def _compiled(call: Callable[..., Any], *inputs: Any) -> Callable[[], Any]:
    import torch

    key = call.__code__
    function = _COMPILED.setdefault(key, torch.compile(call, dynamic=True))
    return lambda: function(*inputs)


def memory(device: str, few: bool) -> Iterator[dict[str, Any]]:
    """Yield rows of kernels that are bound by memory, with the bytes that they have to move."""
    for tokens in (128,) if few else (*TOKENS, 32768):
        for op, call, moved_bytes in _memory_calls(tokens, device):
            yield _moved(op, tokens, moved_bytes, median_us(call, device))
    for tokens, classes in ((128, 1000),) if few else LOGITS:
        for op, call, moved_bytes in _logit_calls(tokens, classes, device):
            yield _moved(op, tokens, moved_bytes, median_us(call, device))
    for count in (1 << 16,) if few else (1 << 20, 1 << 24, 1 << 27):
        for op, call, moved_bytes in _optimizer_calls(count, device):
            yield _moved(op, count, moved_bytes, median_us(call, device))


def _logit_calls(
    tokens: int, classes: int, device: str
) -> Iterator[tuple[str, Callable[[], Any], float]]:
    import torch
    from torch.nn import functional

    logits = torch.randn(tokens, classes, device=device).bfloat16()
    labels = torch.randint(0, classes, (tokens,), device=device)
    n = 2.0 * logits.numel()
    yield "log_softmax_logits", lambda: functional.log_softmax(logits, -1), 2 * n
    yield "cross_entropy_logits", lambda: functional.cross_entropy(logits, labels), 3 * n
    gradient = _gradient(lambda v: functional.cross_entropy(v, labels), logits)
    yield "cross_entropy_backward_logits", gradient, 2 * n
    table = torch.randn(classes, 4096, device=device).bfloat16()
    yield "embedding", lambda: functional.embedding(labels, table), 4.0 * tokens * 4096


def _optimizer_calls(count: int, device: str) -> Iterator[tuple[str, Callable[[], Any], float]]:
    import torch

    for dtype, size in ((torch.bfloat16, 2), (torch.float32, 4)):
        parameter = torch.nn.Parameter(torch.ones(count, device=device, dtype=dtype))
        parameter.grad = torch.ones_like(parameter)
        optimizer = torch.optim.AdamW([parameter], fused=device == "cuda")
        name = str(dtype).removeprefix("torch.")
        yield f"adamw_{name}", optimizer.step, 7.0 * size * count


def _moved(op: str, rows: int, moved_bytes: float, time_us: float) -> dict[str, Any]:
    return {
        "gpu": GPU, "kernel": op, "rows": rows, "moved_bytes": round(moved_bytes),
        "time_us": round(time_us, 3), "GBps": round(moved_bytes / time_us / 1e3, 1),
    }  # fmt: skip


def launches(device: str, few: bool) -> Iterator[dict[str, Any]]:
    """Yield the time for which the host issues an op, and that of a kernel in a CUDA graph."""
    import torch
    from torch.nn import functional

    x = torch.ones(64, 64, device=device)
    weight = torch.ones(64, device=device)
    leaf = torch.ones(64, 64, device=device, requires_grad=True)
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: x + x,
        "matmul": lambda: x @ x,
        "layer_norm": lambda: functional.layer_norm(x, (64,), weight, weight),
        "matmul of autograd, forward and backward": lambda: (leaf @ leaf).backward(x),
    }
    for name, call in calls.items():
        yield {
            "gpu": GPU,
            "what": f"host: {name}",
            "time_us": round(1e6 * _median_s(call, device, 5), 3),
        }
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        value = x
        with torch.cuda.graph(graph):
            for _ in range(1000):
                value = value + 1
        time_us = 1e3 * _median_s(graph.replay, device, 5)
        yield {"gpu": GPU, "what": "graph: add", "time_us": round(time_us, 3)}


def clocks(device: str, few: bool) -> Iterator[dict[str, Any]]:
    """Yield the rate of products by the time for which products have run."""
    import torch

    m, k, n = (128, 128, 128) if few else (8192, 4096, 14336)
    a = torch.randn(m, k, device=device).bfloat16()
    b = torch.randn(k, n, device=device).bfloat16()
    out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
    if device == "cuda":
        torch.cuda.synchronize()
        time.sleep(1.0)
    begin_s = time.perf_counter()
    for count in (1, 1, 2, 4, 8, 16, *([64] * (1 if few else 24))):
        batch_s = time.perf_counter()
        for _ in range(count):
            torch.matmul(a, b, out=out)
        if device == "cuda":
            torch.cuda.synchronize()
        end_s = time.perf_counter()
        rate = 2e-12 * m * k * n * count / (end_s - batch_s)
        yield {"gpu": GPU, "elapsed_s": round(end_s - begin_s, 6), "TFLOPs": round(rate, 1)}


TABLES: dict[str, Callable[[str, bool], Iterable[dict[str, Any]]]] = {
    "launches": launches,
    "attention": attention,
    "memory": memory,
    "products": products,
    "products_float8": products_float8,
    "clocks": clocks,
}


def write_tables(out: Path, device: str, few: bool, deadline_s: float) -> list[str]:
    """Time all kernels until the deadline of the monotonic clock; returns lines for a table."""
    lines = []
    for name, rows in TABLES.items():
        count, begin_s = 0, time.monotonic()
        with (out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = None
            try:
                for row in rows(device, few):
                    writer = writer or csv.DictWriter(file, list(row))
                    if count == 0:
                        writer.writeheader()
                    writer.writerow(row)
                    count += 1
                    if time.monotonic() > deadline_s:
                        break
            except Exception:
                lines.append(traceback.format_exc(limit=-4))
        lines.append(f"{name}.csv: {count} rows in {time.monotonic() - begin_s:.0f} s")
    return lines
