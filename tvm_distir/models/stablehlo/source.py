# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the text of a module from a file, bytecode, or a JAX program."""

from __future__ import annotations

import importlib
import importlib.metadata
from operator import attrgetter
from pathlib import Path
from typing import Any

from tvm_distir.models.common.quiet import reason
from tvm_distir.models.common.spec import JAX_ARTIFACT, check_jax, file_bytes, is_bytecode
from tvm_distir.support import ModelError


def read_source(source: Any) -> tuple[str, str]:
    """Return the text of a module, and its title.

    Parameters
    ----------
    source : str, Path, bytes, or an object of JAX
        Text (recognised by its line breaks), a path, bytecode, the bytes of
        ``jax.export.export(...)(...).serialize()``, what ``jax.jit(f).lower(...)`` or
        ``jax.export.export(...)(...)`` gave.

    Raises
    ------
    ModelError
        DIST0301 there is no file, DIST0303 it is none of these, DIST0304 bytecode or an artifact
        without JAX, or with a version of JAX that cannot read it.
    """
    if hasattr(source, "mlir_module_serialized"):
        return _text_of(bytes(source.mlir_module_serialized), "module"), "module"
    if hasattr(source, "as_text"):
        return str(source.as_text(debug_info=True)), "module"
    if hasattr(source, "operation"):  # a module of MLIR's bindings, as lowered.compiler_ir() gives
        return str(source.operation.get_asm(enable_debug_info=True)), "module"
    if isinstance(source, str) and "\n" in source:
        return source, "text"
    content: bytes | None = None
    if isinstance(source, bytes | bytearray | memoryview):
        data = content = bytes(source)
        location = "bytes"
    elif isinstance(source, str | Path):
        data, location = file_bytes(source), str(source)
    else:
        raise ModelError(
            "DIST0302", f"a {type(source).__name__} is no module of StableHLO", location="source",
            remedy="Give text, a path, bytecode, or what jax.jit(f).lower(...) returns.",
        )  # fmt: skip
    if is_bytecode(data):
        return _text_of(data, location), location
    try:
        return data.decode("utf-8"), location
    except UnicodeDecodeError as error:
        if content is not None or location.lower().endswith(JAX_ARTIFACT):
            return _text_of(_exported(data, location), location), location
        raise _unreadable(location) from error


def _exported(data: bytes, location: str) -> bytes:
    """Return the bytecode in what ``Exported.serialize()`` of JAX wrote.

    Only this field is read: ``jax.export.deserialize`` also rebuilds the structures of arguments,
    for which all their classes, such as the states of an optimizer, have to be registered.
    """
    check_jax(location)
    remedy = (
        "Register the classes of its arguments, and give what jax.export.deserialize returns; or "
        "write text, jax.jit(f).lower(...).as_text()."
    )
    module = "jax._src.export.serialization_generated"
    root = internal(module, "Exported.GetRootAsExported", location, remedy)
    field = internal(module, "Exported.MlirModuleSerializedAsNumpy", location, remedy)
    try:
        code = field(root(data)).tobytes()
    except Exception as error:  # the reader of the format trusts its bytes
        raise _unreadable(location) from error
    if not is_bytecode(code):
        raise _unreadable(location)
    return bytes(code)


def internal(module: str, name: str, location: str, remedy: str) -> Any:
    """Return what JAX has in a module that is not public (ModelError DIST0304 where it lacks)."""
    try:
        return attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        version = importlib.metadata.version("jax")
        problem = f"jax {version} has no {module}.{name}, by which this kind of file is read"
        raise ModelError("DIST0304", problem, location=location, remedy=remedy) from error


def _unreadable(location: str) -> ModelError:
    problem = "it is neither text nor bytecode of MLIR, nor an artifact of jax.export"
    remedy = "Write it with jax.export, or with as_text()."
    return ModelError("DIST0303", problem, location=location, remedy=remedy)


def _text_of(data: bytes, location: str) -> str:
    """Convert bytecode to text by the MLIR bindings in the wheel of jaxlib."""
    check_jax(location)
    remedy = "Write text: jax.jit(f).lower(...).as_text()."
    context = internal("jax._src.interpreters.mlir", "make_ir_context", location, remedy)
    name = "deserialize_portable_artifact"
    deserialize = internal("jaxlib.mlir.dialects.stablehlo", name, location, remedy)
    try:
        module: Any = deserialize(context(), data)
    except Exception as error:  # the bindings raise what MLIR's readers say
        problem = f"the bytecode cannot be read: {reason(error)}"
        remedy = "Write it again with jax.export."
        raise ModelError("DIST0303", problem, location=location, remedy=remedy) from error
    return str(module.operation.get_asm(enable_debug_info=True, print_generic_op_form=True))
