#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Analyze the 100 newest families of `transformers`, and compare each with its class.

``scripts/checks/newest_models.py`` takes all, ``--only NAME...`` some. Each ``config.json`` is that
of the class with small sizes (``tiny_configs.py``); the module is analyzed with ``data_parallel``
on two devices, and run on two devices with random weights. Its results must be those of the class,
which runs with the lowest indices among ties of ``torch.topk``, as torch specifies none.
Each family runs in a process of its own, one at a time, for at most ``--seconds`` of CPU. A line
per family says how far it came:

equal     the results are those of the class
differs   they are not
run, analyze, import
          the package refused or failed there
export    ``torch.export`` fails on the class alone, which runs with these inputs
class     the class itself fails with these inputs, or cannot be built

Exits 1 when fewer than ``--least`` are equal.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import inspect
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import numpy as np
import torch
import transformers
from tests.models.drawn_weights import drawn_weights
from tests.models.stable_ties import StableTies
from tiny_configs import CHANGES, NEWEST, tiny
from torch.utils import _pytree as pytree
from transformers.models.auto import modeling_auto

import tvm_distir as td
from tvm_distir.support import ModelError

HEADS = ("IMAGE_TEXT_TO_TEXT", "CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "MASKED_LM", "OBJECT_DETECTION",
         "CTC", "RNNT", "TEXT_RECOGNITION", "TEXT_TO_WAVEFORM", "DEPTH_ESTIMATION",
         "AUDIO_FRAME_CLASSIFICATION", "DECISION")  # fmt: skip
"""Tasks whose class stands for a family, the first of them that it has."""
BATCH, SEQ = 2, 16


def tiny_model(kind: str) -> tuple[Any, Any]:
    """Return the tiny configuration of a family, and its model with random weights."""
    part = CHANGES.get(kind, {}) if kind == "gemma4_assistant" else {}
    default: Any = transformers.AutoConfig.for_model(kind, **part)
    config = type(default)(**tiny(kind, default.to_dict()))
    config._attn_implementation = "eager"
    config.architectures = [class_name(kind)]
    for part in (config, *vars(config).values()):
        if hasattr(part, "use_cache"):
            part.use_cache = False
    model = getattr(transformers, config.architectures[0])._from_config(config).eval()
    model.float()
    drawn = drawn_weights({name: list(w.shape) for name, w in model.named_parameters()})
    model.load_state_dict({name: torch.from_numpy(w) for name, w in drawn.items()}, strict=False)
    return config, model


def class_name(kind: str) -> str:
    """Return the name of the class that stands for a family."""
    tables = [getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES", {}) for head in HEADS]
    backbones = modeling_auto.MODEL_FOR_BACKBONE_MAPPING_NAMES
    for table in (*tables, modeling_auto.MODEL_MAPPING_NAMES, backbones):
        if kind in table:
            name = table[kind]
            return str(name if isinstance(name, str) else name[0])
    return str(default_class(kind))


def default_class(kind: str) -> str:
    """Return the class of a family that is in no table of `transformers`."""
    prefix = type(transformers.AutoConfig.for_model(kind)).__name__.removesuffix("Config")
    names = [name for name in dir(transformers) if name.startswith(prefix)]
    ends = ("Model", "Generation", "CTC")
    return next(n for n in names if n.endswith(ends) and "PreTrained" not in n)


def compared(kind: str, folder: Path) -> tuple[str, str]:
    """Return how far a family came, and why no further."""
    try:
        config, model = tiny_model(kind)
    except Exception as error:
        return "class", f"{type(error).__name__}: {first_line(error)}"
    path = folder / "config.json"
    path.write_text(config.to_json_string(use_diff=False))
    options: dict[str, Any] = {"strategy": "data_parallel", "mesh": {"dp": 2}, "system": "h100"}
    stage = "analyze"
    try:
        study = td.analyze(f"{path}?seq={SEQ}", batch=BATCH, **options).study
        stage = "run"
        mod = study.source.mod
        inputs = drawn_inputs(mod, config)
        with StableTies() as ties:
            expected = class_results(copy.deepcopy(model), inputs)
        values = {**inputs, **weights_of(mod, model, len(inputs))}
        results = td.run(study.local, values)
    except Exception as error:
        if isinstance(error, ModelError) and str(path) in str(error):
            return blame(error, config, model)
        return stage, f"{type(error).__name__}: {first_line(error)}"
    stage, reason = judged(results, expected)
    return stage, reason + (f", ties in {ties.rows} rows of topk" if ties.rows else "")


def judged(results: Any, expected: list[Any]) -> tuple[str, str]:
    """Compare the results with those of the class."""
    if len(results) != len(expected):
        return "differs", f"{len(results)} results of {len(expected)}"
    worst = 0.0
    for value, reference in zip(results, expected):
        if value.shape != reference.shape:
            return "differs", f"shape {value.shape} of {reference.shape}"
        reference = reference.astype("float64")
        if not np.isfinite(reference).all():
            return "differs", "the class has infinite results"
        scale = max(np.abs(reference).max(initial=0.0), 1e-3)
        worst = max(worst, float(np.abs(value - reference).max(initial=0.0) / scale))
    return ("equal" if worst < 1e-4 else "differs"), f"{worst:.1e}"


def blame(error: ModelError, config: Any, model: Any) -> tuple[str, str]:
    """Return whether the class, its export or the import fails, and why."""
    from tvm_distir.models.huggingface.class_inputs import example_inputs, with_tensors

    if "cannot export the class" not in str(error):
        return "import", first_line(error)
    try:
        inputs = example_inputs(model, BATCH, SEQ)
        with torch.no_grad():
            with_tensors(copy.deepcopy(model)).forward(**inputs)
    except Exception as fault:
        return "class", f"{type(fault).__name__}: {first_line(fault)}"
    try:
        torch.export.export(with_tensors(model), (), inputs, strict=False)
    except Exception as fault:
        return "export", f"{type(fault).__name__}: {first_line(fault)}"
    return "import", first_line(error)


def drawn_inputs(mod: Any, config: Any) -> dict[str, Any]:
    """Return random data for a module: tokens below 64, or values around 0."""
    main, rng = mod["main"], np.random.default_rng(0)
    data = {}
    names = [str(name) for name in main.attrs["dist.param_names"]]
    for name, var in zip(names, main.params[: int(main.attrs["num_input"])]):
        shape = [int(size) for size in var.ty.shape]
        is_int = "int" in str(var.ty.dtype)
        high = min(int(getattr(config.get_text_config(), "vocab_size", 64) or 64), 64)
        values = rng.integers(5, high, shape) if is_int else rng.normal(size=shape)
        data[name] = values.astype(str(var.ty.dtype))
    return data


def weights_of(mod: Any, model: Any, inputs: int) -> dict[str, Any]:
    """Return the weights and buffers that a module reads, by name."""
    known = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]][inputs:]
    return {name: known[name].detach().numpy() for name in names}


def class_results(model: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """Return the tensors that the class returns."""
    given = {name: torch.from_numpy(value) for name, value in inputs.items()}
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters \
        else {}  # fmt: skip
    with torch.no_grad():
        leaves = pytree.tree_leaves(model(**given, **options))
    return [leaf.numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def first_line(error: BaseException) -> str:
    """Return the beginning of a message."""
    return " ".join(str(error).split())[:300]


def import_all() -> None:
    """Import what every process needs, so that those that are forked find it."""
    linear = torch.nn.Linear(2, 2)
    torch.export.export(linear, (torch.zeros(1, 2),)).run_decompositions()
    importlib.import_module("transformers.models.llama.modeling_llama")
    importlib.import_module("transformers.models.exaone.configuration_exaone")
    td.analyze("zoo:mlp?batch=4,layers=1", system="h100")


def in_process(kind: str, seconds: int) -> tuple[str, str]:
    """Return what :func:`compared` says, from a process of at most so much CPU time."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            answer = json.dumps(compared(kind, Path(folder)))
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    if not text:
        return "run", f"ended by signal {status & 127}" if status & 127 else f"exit {status >> 8}"
    stage, reason = json.loads(text)
    return stage, reason


def main() -> int:
    """Run the families, and print a line for each and counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--least", type=int, default=80)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    kinds = args.only or [kind for row in NEWEST.values() for kind in row.split()]
    stages: Counter[str] = Counter()
    import_all()
    for kind in kinds:
        start = time.monotonic()
        stage, reason = in_process(kind, args.seconds)
        stages[stage] += 1
        print(f"{stage:8} {kind:28} {time.monotonic() - start:5.1f} s  {reason}", flush=True)
    print(", ".join(f"{count} {stage}" for stage, count in stages.most_common()))
    return int(stages["equal"] < min(args.least, len(kinds)))


if __name__ == "__main__":
    sys.exit(main())
