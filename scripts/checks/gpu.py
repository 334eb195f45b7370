#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run compiled programs on a GPU: equal results, times beside PyTorch, predicted against measured.

``gpu.py prepare FOLDER`` compiles the programs where TVM's compiler is; no GPU is needed there.
``gpu.py run FOLDER --out OUT`` runs them where the GPU is: TVM's runtime alone, PyTorch and
transformers are needed. Each section is independent: one that fails prints its traceback, and the
next one runs. ``--device cpu`` tries both on a CPU, with ``prepare --target llvm``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpu_cases import (
    CASES,
    FEW_STEPS,
    FRAMEWORK_STEPS,
    PREDICTIONS,
    PROFILES,
    draw_inputs,
    prepare,
)

REPEATS = 10
TARGET = {"kind": "cuda", "arch": "sm_90", "host": {"kind": "llvm", "mcpu": "x86-64-v3"}}
"""For H100 and H200, next to any CPU of the last ten years."""
TOLERANCES = {"float32": 1e-4, "float16": 3e-2}
"""Largest difference from results in float32, relative to the largest of them."""
RESULTS = "results.json"


def _load(folder: Path, device: str) -> tuple[Any, Any]:
    """Return a deployment and its entry function on the device."""
    import tvm

    from tvm_distir.execution.deployment.loading import load
    from tvm_distir.execution.runtime.program.machines import make_machine

    loaded = load(folder)
    (entry,) = loaded.entries
    placed = tvm.cuda(0) if device == "cuda" else tvm.cpu()
    return loaded, make_machine(loaded.library(entry), placed)[entry.function]


def _tensor(value: Any) -> Any:
    import tvm

    # TVM needs an alignment of 64 bytes, which arrays of NumPy may lack.
    return tvm.runtime.from_dlpack(value if value.data_ptr() % 64 == 0 else value.clone())


def _leaves(value: Any) -> list[Any]:
    from tvm_distir.execution.runtime.program.tensors import flat_tensors

    return flat_tensors(value)


def _random_input(port: Any, device: str) -> Any:
    """Return a tensor of an input: indices in range, second moments not negative."""
    import torch

    dtype = getattr(torch, port.dtype)
    if not dtype.is_floating_point:
        return torch.randint(1, 100, port.shape, device=device).to(dtype)
    return torch.randn(port.shape, device=device).abs().mul_(0.02).to(dtype)


def _synchronize(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def timed_s(call: Callable[[], Any], device: str, repeats: int = REPEATS) -> float:
    """Return the median seconds of calls that each end with the work of the device."""
    times_s = []
    for number in range(repeats + 2):
        _synchronize(device)
        begin_s = time.perf_counter()
        result = call()
        _synchronize(device)
        if number >= 2:
            times_s.append(time.perf_counter() - begin_s)
        del result
    return sorted(times_s)[len(times_s) // 2]


class Checks:
    """The sections, with the folder of programs, the device and the results so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.folder: Path = arguments.folder
        self.out: Path = arguments.out
        self.device: str = arguments.device
        self.few: bool = arguments.few
        self.deadline_s = time.monotonic() + arguments.seconds
        self.cases: dict[str, dict[str, Any]] = json.loads((self.folder / CASES).read_text())
        self.results: dict[str, Any] = {}

    def left_s(self) -> float:
        """Return the seconds until no new work begins."""
        return self.deadline_s - time.monotonic()

    def equality(self) -> Iterator[str]:
        """Compare results with those of the CPU in float32."""
        import numpy as np
        import torch

        for name, case in self.cases.items():
            if not case["compares"]:
                continue
            loaded, function = _load(self.folder / name, self.device)
            data = np.load(self.folder / f"{name}.npz")
            args = [
                torch.from_numpy(value).to(self.device, getattr(torch, port.dtype))
                for value, port in zip(draw_inputs(loaded.inputs), loaded.inputs)
            ]
            got = _leaves(function(*map(_tensor, args)))
            worst = 0.0
            for i, result in enumerate(got):
                expected = torch.from_numpy(data[f"output{i}"]).to(self.device)
                apart = (torch.from_dlpack(result).float() - expected).abs().max()
                worst = max(worst, float(apart / expected.abs().max()))
            limit = TOLERANCES[loaded.inputs[-1].dtype]
            verdict = "equal" if worst <= limit else "DIFFERENT"
            self.results[f"equality {name}"] = {"relative": worst, "equal": worst <= limit}
            yield f"{name}: largest relative difference {worst:.2e} (limit {limit:g}): {verdict}"

    def programs(self) -> Iterator[str]:
        """Time the compiled programs, beside their predicted times."""
        import torch

        for name, case in self.cases.items():
            if case["compares"] and not self.few:
                continue
            if self.left_s() < 0:
                yield f"{name}: skipped, no time is left"
                continue
            try:
                loaded, function = _load(self.folder / name, self.device)
                torch.manual_seed(0)
                args = [_tensor(_random_input(p, self.device)) for p in loaded.inputs]
                step_s = timed_s(lambda f=function, a=args: f(*a), self.device)
                self.results[f"program {name}"] = {"measured_s": step_s, **case["predicted_s"]}
                yield f"{name}: {_beside(step_s, case['predicted_s'])}"
                del loaded, function, args
            except Exception:
                yield f"{name}: {traceback.format_exc(limit=-3)}"
            if self.device == "cuda":
                torch.cuda.empty_cache()

    def engine_torch(self) -> Iterator[str]:
        """Run a folder on the engine torch with one rank, and NCCL with one rank by itself."""
        if self.device == "cuda":
            yield self._nccl()
        import numpy as np

        from tvm_distir.execution.deployment.loading import load

        name = next(n for n, c in self.cases.items() if c["compares"])
        data = np.load(self.folder / f"{name}.npz")
        loaded = load(self.folder / name)
        drawn = zip(draw_inputs(loaded.inputs), loaded.inputs)
        inputs = [value.astype(port.dtype) for value, port in drawn]
        (got,) = loaded.run(inputs, engine="torch")
        apart = float(np.abs(got.astype("f4") - data["output0"]).max())
        self.results["engine torch"] = {"largest": apart}
        yield f"engine torch, {name}: largest difference {apart:.2e}"

    def _nccl(self) -> str:
        import torch
        from torch import distributed

        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29533")
        distributed.init_process_group("nccl", rank=0, world_size=1)
        try:
            value = torch.ones(1 << 20, device="cuda")
            distributed.all_reduce(value)
            step_s = timed_s(lambda: distributed.all_reduce(value), "cuda")
            return f"NCCL, one rank, all-reduce of 4 MiB: {1e6 * step_s:.1f} us"
        finally:
            distributed.destroy_process_group()

    def kernels(self) -> Iterator[str]:
        """Time single kernels of PyTorch, as rows for calibration."""
        from gpu_kernels import write_tables

        until_s = min(self.deadline_s, time.monotonic() + 90)
        yield from write_tables(self.out, self.device, self.few, until_s)

    def frameworks(self) -> Iterator[str]:
        """Time steps of modules of transformers, eager and compiled."""
        from gpu_frameworks import measured

        predictions = json.loads((self.folder / PREDICTIONS).read_text())
        steps = FEW_STEPS if self.few else FRAMEWORK_STEPS
        for name, result in measured(steps, self.device, self.left_s, timed_s):
            self.results[f"pytorch {name}"] = result
            prediction = predictions.get(name.rpartition(" ")[0], {})
            memory = ", ".join(
                f"{key.removesuffix('_bytes')} {result[key] / 2**30:.2f} GiB"
                for key in ("peak_bytes", "reserved_bytes")
                if key in result
            )
            yield f"{name}: {_beside(result['measured_s'], prediction)}; {memory}"


def _beside(step_s: float, predicted_s: dict[str, float]) -> str:
    parts = [f"measured {1e3 * step_s:.3f} ms"]
    for profile in PROFILES:
        if profile in predicted_s:
            value_s = predicted_s[profile]
            error = 100 * (value_s / step_s - 1)
            parts.append(f"predicted ({profile}) {1e3 * value_s:.3f} ms, {error:+.0f} %")
    return "; ".join(parts)


SECTIONS = ("equality", "programs", "engine_torch", "kernels", "frameworks")


def run(arguments: argparse.Namespace) -> int:
    """Run the sections, and write every line and result."""
    os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")
    arguments.out.mkdir(parents=True, exist_ok=True)
    checks, failed = Checks(arguments), []
    with (arguments.out / "log.txt").open("w", encoding="utf-8") as log:

        def say(line: str) -> None:
            print(line, flush=True)
            log.write(f"{line}\n")
            log.flush()

        say(f"device: {_device_name(arguments.device)}")
        for section in arguments.sections:
            begin_s = time.monotonic()
            say(f"== {section}")
            try:
                for line in getattr(checks, section)():
                    say(line)
            except Exception:
                failed.append(section)
                say(traceback.format_exc())
            say(f"-- {section}: {time.monotonic() - begin_s:.0f} s")
            text = json.dumps(checks.results, indent=1)
            (arguments.out / RESULTS).write_text(text + "\n", encoding="utf-8")
        say(f"sections that failed: {', '.join(failed) or 'none'}")
    return bool(failed)


def _device_name(device: str) -> str:
    import torch

    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
    return f"CPU, PyTorch {torch.__version__}"


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("prepare")
    first.add_argument("folder", type=Path)
    first.add_argument("--target", default=json.dumps(TARGET))
    first.add_argument("--cases", nargs="*", default=[])
    second = commands.add_parser("run")
    second.add_argument("folder", type=Path)
    second.add_argument("--out", type=Path, required=True)
    second.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    second.add_argument("--few", action="store_true", help="few sizes, for a trial")
    second.add_argument("--seconds", type=float, default=330.0, help="no case begins after them")
    second.add_argument("--sections", nargs="*", default=SECTIONS, choices=SECTIONS)
    arguments = parser.parse_args()
    if arguments.command == "prepare":
        prepare(arguments.folder, arguments.target, arguments.cases)
        return 0
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
