# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir deploy``: write a distributed model to a folder that runs without a compiler."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from tvm_distir.planning import StepOptions
from tvm_distir.support import option, parse_count

from .options import (
    add_dispatch,
    add_model_options,
    add_options,
    asked_by,
    model_inputs,
    read_options,
    read_planned_step,
)
from .outputs import Outputs
from .stages import study_of
from .terminal import print_answer


@dataclass(frozen=True)
class DeployOptions:
    """Options of ``deploy``.

    Parameters
    ----------
    weights : str, optional
        Read the weights from a .safetensors, .npz or .npy file or a folder of them (default: the
        weights of the model).
    target : str, optional
        Compile for a target, such as cuda:sm_90 or llvm:x86-64-v3, or a tag of TVM, such as
        nvidia/nvidia-h100 (default: this machine's CPU).
    hosts : int
        Write the scripts run.sh and run.sbatch for N hosts (default: 1).
    folder : str
        Write to a new or empty folder, or replace a folder of `deploy`.
    force : bool
        Replace files in the output folder that tvm-distir did not write.
    json : bool
        Print JSON instead of text.
    """

    weights: str | None = option("build", "FILE", frequent=True)
    target: str | None = option("build", "KIND:ARCH", frequent=True)
    hosts: int = option("build", "N", parse_count, usual="1", frequent=True)
    folder: str = option("write", "FOLDER", flag="-o", frequent=True)
    force: bool = option("write", default=False)
    json: bool = option("write", default=False, frequent=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    add_model_options(parser)
    add_options(parser, DeployOptions, ("build",))
    add_dispatch(parser)
    add_options(parser, DeployOptions, ("write",), required=("folder",))


def run(arguments: argparse.Namespace) -> int:
    """Load, run the passes, write the folder, list its files."""
    step = read_planned_step(arguments, StepOptions)
    options = read_options(arguments, DeployOptions)
    outputs = Outputs({**model_inputs(step), "--weights": options.weights})
    outputs.protect_folder(options.folder, "-o")
    from tvm_distir.execution import as_target, check_dispatch, deploy, replaceable

    with asked_by("--target", "DIST0622"):
        target = as_target(options.target)
    with asked_by("--dispatch", "DIST0623"):
        check_dispatch(arguments.dispatch)
    replaceable(Path(os.path.realpath(options.folder)), options.force)
    study = study_of(step)
    local = study.local
    with study.watch.stage("deploy"):
        weights = options.weights or study.source.read_weights()
        deployed = deploy(
            local, options.folder, weights, target=target, dispatch=arguments.dispatch,
            hosts=options.hosts, force=options.force,
        )  # fmt: skip
    inputs = [{"name": p.name, "shape": list(p.shape), "dtype": p.dtype} for p in deployed.inputs]
    files = {name: size for name, (size, _) in deployed.manifest.files.items()}
    about = {"folder": str(deployed.folder), "target": deployed.manifest.target}
    data = {"schema_version": 1, **about, "inputs": inputs, "files": files}
    data |= {"timings_s": study.watch.timings_s}
    ranks = sum(len(e.ranks) for e in deployed.entries)
    lines = [f"{deployed.folder}: {len(deployed.entries)} meshes, {ranks} devices"]
    lines += [f"  {name}  {size:,} bytes" for name, size in files.items()]
    lines += [f"  input {item['name']}: {item['dtype']}{item['shape']}" for item in inputs]
    print_answer(data, "\n".join(lines) + "\n", options.json)
    return 0
