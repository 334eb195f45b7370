# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs of ``gpu.py``: which models are compiled and run, and what is predicted for them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

SYSTEM = "h100"
PROFILES = ("fused", "torch-compile", "torch-eager")
"""Kernel profiles whose predictions are printed."""
CASES = "cases.json"
PREDICTIONS = "predictions.json"
EQUALITY_SIZES = "size=tiny,layers=4,hidden=256,heads=8,seq=128,positions=128,vocab=1000,batch=4"
GPT2 = "zoo:gpt?size=gpt2,seq=1024,attention=flash,fused_qkv=1"
WRITTEN_GPT2 = "zoo:gpt?size=gpt2,seq=1024"
"""Its attention is written out: TVM's own kernel of attention has no half precision."""
MEDIUM = "zoo:gpt?size=gpt2-medium,seq=1024,attention=flash,fused_qkv=1"
LLAMA = "zoo:llama?size=8b,layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,seq=1024"


@dataclass(frozen=True)
class Case:
    """A program that is compiled for one GPU.

    Attributes
    ----------
    name : str
        The name of its folder.
    model : str
        The model of the zoo.
    dispatch : str or None
        ``"torch"`` or None, see :func:`tvm_distir.deploy`.
    train : bool
        Whether it is a training step with AdamW, without float32 copies of weights.
    compares : bool
        Whether its results are compared with those of the CPU.
    """

    name: str
    model: str
    dispatch: str | None = None
    train: bool = False
    compares: bool = False


def _both(name: str, model: str, **options: Any) -> list[Case]:
    """Return a case with TVM's kernels and one with those of PyTorch."""
    return [Case(f"{name}-{d or 'tvm'}", model, d, **options) for d in (None, "torch")]


ALL = [
    *_both("equal-float32", f"zoo:gpt?{EQUALITY_SIZES},dtype=float32", compares=True),
    *_both("equal-float16", f"zoo:gpt?{EQUALITY_SIZES},dtype=float16", compares=True),
    *_both("gpt2-float32", f"{GPT2},batch=4,dtype=float32"),
    *_both("gpt2-float16", f"{WRITTEN_GPT2},batch=8,dtype=float16"),
    Case("gpt2-bfloat16-torch", f"{GPT2},batch=8,dtype=bfloat16", "torch"),
    Case("medium-bfloat16-torch", f"{MEDIUM},batch=8,dtype=bfloat16", "torch"),
    Case("llama-1b-bfloat16-torch", f"{LLAMA},batch=4,dtype=bfloat16", "torch"),
    Case("gpt2-train-torch", f"{GPT2},batch=8,dtype=bfloat16", "torch", train=True),
    Case("medium-train-torch", f"{MEDIUM},batch=4,dtype=bfloat16", "torch", train=True),
    Case("llama-1b-train-torch", f"{LLAMA},batch=2,dtype=bfloat16", "torch", train=True),
]


@dataclass(frozen=True)
class FrameworkStep:
    """A step of a module of transformers that is timed, and predicted.

    Attributes
    ----------
    name, model : str
        The name of the step, and that of the model in :data:`gpu_frameworks.MAKERS`.
    zoo : str
        The same model of the zoo, without its batch.
    batch, positions : int
    train : bool
        Whether it is a training step with AdamW, without float32 copies of weights.
    recompute : bool
        Whether layers are computed again in the backward pass.
    modes : tuple of str
        ``"eager"`` and ``"compiled"``.
    """

    name: str
    model: str
    zoo: str
    batch: int
    positions: int = 1024
    train: bool = False
    recompute: bool = False
    modes: tuple[str, ...] = ("eager",)


_LLAMA_8B = "zoo:llama?size=8b,seq=8192,layers="
_BOTH = ("eager", "compiled")
FRAMEWORK_STEPS = [
    FrameworkStep("llama-8b-4 train", "llama-8b-4", f"{_LLAMA_8B}4", 1, 8192, True, modes=_BOTH),
    FrameworkStep("llama-8b-2 train", "llama-8b-2", f"{_LLAMA_8B}2", 1, 8192, True, modes=_BOTH),
    FrameworkStep(
        "llama-8b-4 train, recomputed", "llama-8b-4", f"{_LLAMA_8B}4", 2, 8192, True, True
    ),
    FrameworkStep(
        "llama-8b-2 train, recomputed", "llama-8b-2", f"{_LLAMA_8B}2", 2, 8192, True, True
    ),
    FrameworkStep("gpt2 forward", "gpt2", GPT2, 8, modes=_BOTH),
    FrameworkStep("gpt2 train", "gpt2", GPT2, 8, train=True, modes=_BOTH),
    FrameworkStep("medium train", "medium", MEDIUM, 4, train=True, modes=_BOTH),
    FrameworkStep("llama-1b forward", "llama-1b", LLAMA, 4, modes=_BOTH),
    FrameworkStep("llama-1b train", "llama-1b", LLAMA, 2, train=True, modes=_BOTH),
]
FEW_STEPS = [
    FrameworkStep("tiny forward", "tiny", "", 2, 64),
    FrameworkStep("tiny train", "tiny", "", 2, 64, True, True, modes=_BOTH),
]


def predict(system: str = SYSTEM) -> dict[str, dict[str, float]]:
    """Return seconds by profile, and bytes, that are predicted for the steps of frameworks."""
    import tvm_distir as td

    predictions = {}
    for step in FRAMEWORK_STEPS:
        results = {
            profile: td.analyze(
                f"{step.zoo},batch={step.batch},dtype=bfloat16",
                system=system,
                strategy="data_parallel",
                mesh={"dp": 1},
                train={"optimizer": "adamw"} if step.train else False,
                recompute="checkpoint" if step.recompute else None,
                kernels=profile,
            ).simulation
            for profile in PROFILES
        }
        predictions[step.name] = {
            **{name: result.time_s for name, result in results.items()},
            **{f"{name} bytes": result.peak_memory_bytes for name, result in results.items()},
        }
    return predictions


def prepare(folder: Path, target: str, names: list[str]) -> None:
    """Compile the cases, and write predictions, inputs and results of the CPU beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    known = json.loads((folder / CASES).read_text()) if (folder / CASES).exists() else {}
    for case in ALL:
        if names and case.name not in names:
            continue
        begin_s = time.monotonic()
        try:
            known[case.name] = {**asdict(case), **_prepared(case, folder, target)}
        except Exception as error:  # the other cases are still of use
            print(f"{case.name}: {type(error).__name__}: {str(error)[:500]}", flush=True)
            continue
        (folder / CASES).write_text(json.dumps(known, indent=1) + "\n")
        print(f"{case.name}: {time.monotonic() - begin_s:.0f} s", flush=True)
    (folder / PREDICTIONS).write_text(json.dumps(predict(), indent=1) + "\n")


def _prepared(case: Case, folder: Path, target: str) -> dict[str, Any]:
    import tvm_distir as td

    mod = td.load_model(case.model).mod
    step = td.train_step(mod, optimizer="adamw") if case.train else mod
    plan = td.planning.make_plan(step, "data_parallel", {"dp": 1})
    dist = td.distribute(step, plan)
    deployed = td.deploy(dist, folder / case.name, target=target, dispatch=case.dispatch)
    predicted = {profile: td.simulate(dist, SYSTEM, kernels=profile).time_s for profile in PROFILES}
    if case.compares:
        write_results(mod, deployed.inputs, folder / f"{case.name}.npz")
    return {"predicted_s": predicted}


def draw_inputs(ports: Sequence[Any]) -> list[np.ndarray]:
    """Return the same inputs wherever they are drawn: floats in float32, indices below 100."""
    values = []
    for number, port in enumerate(ports):
        rng = np.random.default_rng(number)
        is_float = "float" in port.dtype
        drawn = rng.standard_normal(port.shape, "float32") * 0.05 if is_float else None
        values.append(rng.integers(0, 100, port.shape, port.dtype) if drawn is None else drawn)
    return values


def write_results(mod: Any, ports: Sequence[Any], path: Path) -> None:
    """Write the results of the module in float32 on this CPU."""
    from tvm_distir.execution.runtime.engines.reference import Reference
    from tvm_distir.execution.verification.float32_reference import widened

    results = Reference(widened(mod)).run(draw_inputs(ports))
    np.savez_compressed(path, **{f"output{i}": x for i, x in enumerate(results)})
