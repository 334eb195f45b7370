# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Give sizes to the symbolic dims of a module that ``jax.export`` wrote.

The module states its symbolic dims in the assertions on shapes that it begins with. The pass of
jaxlib that XLA runs before it compiles such a module replaces them, and checks their constraints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm_distir.models.common.spec import check_jax
from tvm_distir.support import ModelError, nearest

from .source import internal

_SPECIFICATIONS = re.compile(r"shapes specifications: (.*?)\. Obtained dimension variables")
_TERM = re.compile(r"-?\d+|[A-Za-z_]\w*")
SYMBOLIC = "jax.uses_shape_polymorphism = true"
"""Attribute of a module with symbolic dims."""
_ENTRY = "exported_main"


def refined(text: str, sizes: Mapping[str, int], location: str) -> str:
    """Return the text of a module with sizes for its symbolic dims.

    Parameters
    ----------
    text : str
        The text of MLIR.
    sizes : mapping of str to int
        By the names that were given to ``jax.export.symbolic_shape``.
    location : str

    Raises
    ------
    ModelError
        DIST0313 a dim without a size, a name that is no dim, and sizes that break a constraint;
        DIST0304 without JAX.
    """
    if SYMBOLIC not in text:
        if sizes:
            problem = f'all dims have sizes: there is no symbolic dim "{next(iter(sizes))}"'
            raise _fault(problem, location, "Export it with these sizes.")
        return text
    check_jax(location)
    shapes = list(_shapes(text, sizes, location))
    remedy = "Export it with these sizes."
    context = internal("jax._src.interpreters.mlir", "make_ir_context", location, remedy)
    mlir: Any = internal("jaxlib.mlir", "ir", location, remedy)
    refine = internal("jaxlib._jax", "mlir.refine_polymorphic_shapes", location, remedy)
    with context(), mlir.Location.unknown():
        wrapped = _wrapped(mlir.Module.parse(text), shapes, mlir)
        try:
            code = refine(wrapped.encode())
        except Exception as error:  # the pass raises what MLIR says, such as a failed assertion
            message = str(error).rpartition("error: ")[2].partition("  Using the following")[0]
            problem = f"the sizes do not fit: {' '.join(message.split())}"
            raise _fault(problem, location, "Give sizes that meet its constraints.") from error
        result = mlir.Module.parse(code).operation
        return str(result.get_asm(enable_debug_info=True))


def _fault(problem: str, location: str, remedy: str) -> ModelError:
    return ModelError("DIST0313", problem, location=location, remedy=remedy)


def _shapes(text: str, sizes: Mapping[str, int], location: str) -> Iterator[list[int]]:
    """Return the shapes of the arguments that have symbolic dims, in order."""
    match = _SPECIFICATIONS.search(text)
    stated = match[1].split(".shape = (")[1:] if match else []
    shapes = [part[: part.rindex(")")].rstrip(",").split(",") for part in stated]
    names = {name for shape in shapes for dim in shape for name in _TERM.findall(dim)}
    names = {name for name in names if not name.lstrip("-").isdigit()}
    for name in sizes:
        if name not in names:
            raise _fault(f'there is no symbolic dim "{name}"', location, nearest(name, names))
    missing = sorted(names - set(sizes))
    if missing or not shapes:
        needed = " ".join(f"--dim {name}=N" for name in missing)
        problem = f"the symbolic dims {', '.join(missing)} have no sizes"
        raise _fault(problem, location, f"Give them: {needed} (dims= in Python).")
    for shape in shapes:
        yield [_size(dim.strip(), sizes, location) for dim in shape]


def _size(dim: str, sizes: Mapping[str, int], location: str) -> int:
    """Return the size of a dim, a sum of products of names and numbers such as ``2*b - 1``."""
    total = 0
    for product in dim.replace("- ", "+ -1*").split("+"):
        factors = [factor.strip() for factor in product.split("*")]
        if not all(map(_TERM.fullmatch, factors)):
            remedy = "Export it with sizes that are sums of products."
            raise _fault(f'the size "{dim}" is not known', location, remedy)
        total += math.prod(sizes[f] if f in sizes else int(f) for f in factors)
    return total


def _wrapped(module: Any, shapes: Sequence[Sequence[int]], mlir: Any) -> str:
    """Return the text with a ``main`` of known shapes that calls what was ``main``."""
    functions = {mlir.StringAttr(op.attributes["sym_name"]).value: op
                 for op in module.body.operations if "sym_name" in op.attributes}  # fmt: skip
    main = functions["main"]
    kind = mlir.FunctionType(mlir.TypeAttr(main.attributes["function_type"]).value)
    named = functions.get("_wrapped_jax_export_main", main).regions[0].blocks[0].arguments
    locations = [str(value.location) for value in list(named)[-len(kind.inputs) :]]
    notes = (
        main.attributes["res_attrs"] if "res_attrs" in main.attributes else [""] * len(kind.results)
    )
    remaining = iter(shapes)
    types = [
        re.sub(r"<(?:[\d?]+x)+", f"<{'x'.join(map(str, next(remaining)))}x", str(old))
        if "?" in str(old) else str(old)
        for old in kind.inputs
    ]  # fmt: skip
    arguments = ", ".join(f"%a{i}: {t} {p}" for i, (t, p) in enumerate(zip(types, locations)))
    results = ", ".join(map(str, kind.results))
    inputs = ", ".join(map(str, kind.inputs))
    converted = "\n".join(
        f"%b{i} = stablehlo.convert %a{i} : ({t}) -> {old}"
        for i, (t, old) in enumerate(zip(types, kind.inputs))
    )
    values = ", ".join(f"%b{i}" for i in range(len(types)))
    returned = ", ".join(f"%r#{i}" for i in range(len(kind.results)))
    noted = ", ".join(f"{t} {note}" for t, note in zip(kind.results, notes))
    caller = (
        f"func.func public @main({arguments}) -> ({noted}) {{\n{converted}\n"
        f"%r:{len(kind.results)} = call @{_ENTRY}({values}) : ({inputs}) -> ({results})\n"
        f"return {returned} : {results}\n}}"
    )
    main.attributes["sym_name"] = mlir.StringAttr.get(_ENTRY)
    main.attributes["sym_visibility"] = mlir.StringAttr.get("private")
    text = str(module.operation.get_asm(enable_debug_info=True))
    end = text.rindex("\n}")  # of the module; locations may follow
    return f"{text[:end]}\n{caller}{text[end:]}"
