# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose the target of compiled programs, and check that this machine runs it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi

from tvm_distir.support import EngineError

from .cuda_backend import load_cuda_runtime

_LEVELS = {
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"),
}
"""Microarchitecture levels of the x86-64 psABI and the features that tell them apart."""


_CPU_KINDS = ("llvm", "c")
"""Kinds of TVM's targets whose code runs on CPUs."""


def _host_features() -> set[str]:
    """Return the features of this machine's CPU; none where TVM's runtime alone is loaded."""
    read = tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures", allow_missing=True)
    return {str(name) for name, has in read().items() if has} if read else set()


def _level_features(level: str) -> set[str]:
    """Return the features that a microarchitecture level has; none for other names."""
    return {*_LEVELS["x86-64-v3"], *_LEVELS[level]} if level in _LEVELS else set()


@functools.lru_cache(maxsize=1)
def host_target() -> tvm.target.Target:
    """Return LLVM's target of this machine, with the best x86-64 level that the CPU reports.

    LLVM's level 2 vectorises as level 3 does, and compiles in a third of the time.
    """
    base = {"kind": "llvm", "opt-level": 2}
    features = _host_features()
    for level in _LEVELS:
        if features >= _level_features(level):
            return tvm.target.Target({**base, "mcpu": level})
    return tvm.target.Target(base)


def as_target(target: object) -> tvm.target.Target:
    """Return TVM's target of a description.

    Parameters
    ----------
    target : str, mapping, tvm.target.Target or None
        ``KIND:ARCH``, where the architecture may be left out (``cuda:sm_90``, ``llvm:x86-64-v3``,
        ``metal``); a tag of TVM (``nvidia/nvidia-h100``); TVM's JSON form, as text or mapping; None
        for the target in scope.

    Raises
    ------
    EngineError
        DIST0622 for what TVM does not know.
    """
    if target is None or isinstance(target, tvm.target.Target):
        return target or target_in_scope()
    text = str(target)
    try:
        config = target
        if isinstance(target, str):
            config = json.loads(text) if text.startswith("{") else _config(text)
        known = tvm.target.Target(config)
    except (TypeError, ValueError, RuntimeError) as err:
        raise EngineError(
            "DIST0622",
            f"TVM does not know the target: {str(err).strip().splitlines()[-1][:200]}",
            location=text,
            remedy="Give KIND:ARCH, such as cuda:sm_90 or llvm:x86-64-v3, a tag of TVM, such as "
            "nvidia/nvidia-h100, or TVM's JSON form.",
        ) from err
    # The code that launches the kernels of a GPU runs on a CPU like this one.
    on_host = known.kind.name in _CPU_KINDS or known.host is not None
    return known if on_host else known.with_host(host_target())


def _config(text: str) -> Any:
    """Return the name of a target, or of ``KIND:ARCH`` TVM's JSON form."""
    kind, *arch = text.split(":")
    if not arch:
        return text
    if len(arch) > 1 or not all(arch):
        raise ValueError("it is not KIND:ARCH")
    return {"kind": kind, "mcpu" if kind in _CPU_KINDS else "arch": arch[0]}


def target_in_scope() -> tvm.target.Target:
    """Return the target of the ``with target:`` around the caller, else :func:`host_target`."""
    return tvm.target.Target.current(allow_none=True) or host_target()


def check_engine_runs(target: str, location: str) -> None:
    """Refuse to run code of a GPU: the engines give programs arrays in the memory of the host.

    Parameters
    ----------
    target : str
        TVM's JSON form.
    location : str
        The function that would run it, for the message.

    Raises
    ------
    EngineError
        DIST0609.
    """
    kind = json.loads(target)["kind"]
    if kind not in _CPU_KINDS:
        raise EngineError(
            "DIST0609",
            f"it runs programs on CPUs, and the target is {kind}",
            location=location,
            remedy="Run without a Target in scope, or with a Target of kind llvm; use td.deploy "
            "for other targets.",
        )


def check_machine_runs(target: Mapping[str, Any], location: str) -> None:
    """Refuse a target whose code this machine cannot run.

    Of an instruction set it can tell only where TVM's compiler is loaded, and only for the
    levels that :func:`host_target` chooses.

    Parameters
    ----------
    target : mapping
        The target, as TVM's JSON form.
    location : str

    Raises
    ------
    EngineError
        DIST0609 naming what is missing.
    """
    kind, host = str(target["kind"]), target.get("host", {})
    processor = str(target.get("mcpu", ""))
    features = _host_features()
    absent = _level_features(str((target if kind in _CPU_KINDS else host).get("mcpu", "")))
    reason = ""
    if kind not in _CPU_KINDS and not _has_device(kind):
        reason = f"that has no {kind} device available to TVM"
    elif features and absent - features:
        reason = f"whose CPU lacks {', '.join(sorted(absent - features))}"
    if reason:
        text = f"{kind} {processor}".strip()
        problem = f"it was compiled for {text}, and this is a machine {reason}"
        remedy = "Load it on a machine with its target, or deploy it again for this machine."
        raise EngineError("DIST0609", problem, location=location, remedy=remedy)


def _has_device(kind: str) -> bool:
    if kind == "cuda":
        load_cuda_runtime()
    try:
        return bool(tvm.device(kind).exist)
    except ValueError:  # of a kind that TVM does not know
        return False
