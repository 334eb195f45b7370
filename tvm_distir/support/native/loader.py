# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find and load the native library.

``import tvm_distir`` looks for it, and the first use loads it. A library that is missing or cannot
be used is an error.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_distir.support.errors.tree import DependencyError
from tvm_distir.support.native.tvm_nodes import check_nodes

if TYPE_CHECKING:
    from tvm_ffi import Module

ABI_VERSION = 16
"""Version of the interface that the Python side is written for (``passes/ffi/abi.cc``)."""

LIBRARY_VARIABLE = "TVM_DISTIR_LIBRARY"
"""Environment variable that names a library to load instead of the installed library."""

LIBRARY_NAME = "libtvm_distir.so"
DISTRIBUTION = "tvm_distir"
_REBUILD = "Install the package again (scripts/setup, or: pip install .), which builds it."


def _candidates() -> Iterator[Path]:
    """Return the possible paths of the installed library, the likeliest first."""
    yield Path(__file__).resolve().parents[2] / "lib" / LIBRARY_NAME
    try:
        # An editable install imports the sources but puts the library into site-packages.
        files = metadata.files(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return
    for file in files or ():
        if file.name == LIBRARY_NAME:
            yield Path(str(file.locate()))


def library_path() -> Path:
    """Return the path of the library to load.

    The environment variable :data:`LIBRARY_VARIABLE` decides when it is set; else the library is
    looked for in ``lib`` beside the package, then among the files of the installed distribution.

    Raises
    ------
    DependencyError
        DIST0110 when there is none.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise DependencyError(
                "DIST0110",
                f"{LIBRARY_VARIABLE} names {named}, which is not a file",
                location="native library",
                remedy=f"Build it (cmake -S . -B build && cmake --build build), or unset "
                f"{LIBRARY_VARIABLE}.",
            )
        return path.resolve()
    looked: list[str] = []
    for path in _candidates():
        if path.is_file():
            return path
        looked.append(str(path))
    raise DependencyError(
        "DIST0110",
        f"there is no {LIBRARY_NAME} (looked for {', '.join(looked)})",
        location="native library",
        remedy=f"{_REBUILD} Or set the path of a library in {LIBRARY_VARIABLE}.",
    )


def load_library() -> Module:
    """Load the library once per path and check that its interface is as expected.

    It is looked for once for each value of :data:`LIBRARY_VARIABLE`.

    Returns
    -------
    module : tvm_ffi.Module
        ``module["schedule"]`` is the kernel of that name.

    Raises
    ------
    DependencyError
        DIST0110 when it is missing, broken, or of another version.
    """
    return _library(os.environ.get(LIBRARY_VARIABLE))


def native_function(name: str) -> Any:
    """Return a function of ``passes/ffi``, which accesses TVM's nodes.

    Raises
    ------
    DependencyError
        DIST0110 without the native library, DIST0115 where TVM lacks a node or a field.
    """
    return _native_function(name, os.environ.get(LIBRARY_VARIABLE))


@functools.cache
def _native_function(name: str, named: str | None) -> Any:
    """Look a function up, once while the environment variable has this value."""
    check_nodes()
    return load_library()[name]


@functools.cache
def _library(named: str | None) -> Module:
    """Return the library, while the environment variable has this value."""
    return _load(library_path())


@functools.cache
def _load(path: Path) -> Module:
    import tvm_ffi

    location = f"native library {path}"
    try:
        module = tvm_ffi.load_module(str(path))
    except Exception as err:  # the loader reports what dlopen says in several classes
        problem = f"it cannot be loaded: {str(err).strip().splitlines()[-1]}"
        raise DependencyError("DIST0110", problem, location=location, remedy=_REBUILD) from err
    try:
        version = int(module["abi_version"]())
    except AttributeError as err:
        problem = "it does not report its version: it is another library"
        raise DependencyError("DIST0110", problem, location=location, remedy=_REBUILD) from err
    if version != ABI_VERSION:
        problem = f"its interface has version {version}, this package requires {ABI_VERSION}"
        raise DependencyError("DIST0110", problem, location=location, remedy=_REBUILD)
    return module
