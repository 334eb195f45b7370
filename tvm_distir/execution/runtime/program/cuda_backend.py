# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compile machine code for NVIDIA GPUs on machines that have none.

TVM's backend for CUDA links the driver, ``libcuda.so.1``. Where there is no driver, TVM does not
load the backend, and libraries hold the source of their kernels, which a machine with a GPU must
compile whenever it loads them. So a library of the functions that the backend links, each of which
reports that there is no device, is loaded in place of the driver.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import tvm
import tvm_ffi

from .linking import find_compiler

COMPILER_VARIABLE = "TVM_CUDA_COMPILE_MODE"
"""Environment variable by which TVM chooses between ``nvcc`` and ``nvrtc``."""

_DRIVER = "libcuda.so.1"
_DRIVER_FUNCTIONS = (
    "cuDeviceGetName",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuLaunchKernelEx",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)
_NO_DEVICE = 100
"""``CUDA_ERROR_NO_DEVICE``."""


def load_cuda_backend(target: tvm.target.Target) -> bool:
    """Load TVM's backend for CUDA where a target needs it.

    Parameters
    ----------
    target : tvm.target.Target

    Returns
    -------
    machine_code : bool
        Whether libraries for the target hold machine code: always, except for CUDA without a
        compiler (nvcc, or NVRTC with cuda-bindings), the CUDA runtime, or a C compiler. They hold
        source then.
    """
    if target.kind.name != "cuda":
        return True
    return _choose_compiler() and (load_cuda_runtime() or _load_without_driver())


def _choose_compiler() -> bool:
    """Name the compiler that is installed to TVM, unless the user has named it."""
    if COMPILER_VARIABLE not in os.environ:
        if _has_nvrtc():
            return True  # TVM's default
        if shutil.which("nvcc") is None:
            return False
        os.environ[COMPILER_VARIABLE] = "nvcc"
    return True


def _has_nvrtc() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:  # no package cuda
        return False


@functools.cache
def load_cuda_runtime() -> bool:
    """Load TVM's backend for CUDA where there is a driver; returns whether it is loaded.

    TVM does so itself, unless its runtime alone is loaded (``TVM_USE_RUNTIME_LIB=1``).
    """
    if tvm_ffi.get_global_func("ffi.Module.create.cuda", allow_missing=True) is not None:
        return True
    backend = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    try:
        ctypes.CDLL(str(backend), mode=ctypes.RTLD_GLOBAL)
    except OSError:  # there is no driver, or no CUDA runtime
        return False
    return True


@functools.cache
def _load_without_driver() -> bool:
    """Load the backend, with a library in place of a missing driver; returns whether it is."""
    try:
        ctypes.CDLL(_DRIVER, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        compiler = find_compiler()
        if compiler is None:
            return False
        _load_driver_substitute(compiler)
    load_cuda_runtime.cache_clear()
    return load_cuda_runtime()


def _load_driver_substitute(compiler: str) -> None:
    """Compile and load a driver whose functions report that there is no device."""
    with tempfile.TemporaryDirectory(prefix="tvm-distir-") as folder:
        source, library = Path(folder, "driver.c"), Path(folder, _DRIVER)
        functions = (f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in _DRIVER_FUNCTIONS)
        # A C++ compiler must not mangle the names.
        source.write_text(
            f'#ifdef __cplusplus\nextern "C" {{\n#endif\n{"".join(functions)}'
            "#ifdef __cplusplus\n}\n#endif\n",
            encoding="utf-8",
        )
        link = ["-shared", "-fPIC", f"-Wl,-soname,{_DRIVER}"]
        subprocess.run([compiler, *link, "-o", str(library), str(source)], check=True)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
