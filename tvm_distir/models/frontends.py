# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import models of other frameworks, and read their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from tvm import ir

from tvm_distir.core.ir.attributes import FRONTEND_ATTR
from tvm_distir.models.common.import_cache import cached_import
from tvm_distir.models.common.spec import check_archive, check_file, check_torch
from tvm_distir.support import ModelError

if TYPE_CHECKING:
    import onnx
    from torch.export import ExportedProgram

Weights = dict[str, npt.NDArray[np.generic]]


def from_onnx(
    source: str | Path | onnx.ModelProto,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
) -> ir.IRModule:
    """Import an ONNX model; its weights become parameters of ``main`` and take no memory.

    Parameters
    ----------
    source : str, Path or ModelProto
        The model; external weight files are not opened.
    batch : int, optional
        The new size of dim 0 of every data input; constants that pin the old size are rewritten.
    dims : mapping of str to int, optional
        The sizes of the symbolic dims of the inputs, by name; ``INPUT.INDEX`` for a dim without a
        name.

    Returns
    -------
    IRModule
        ``main(*data, *weights)``; its attribute ``num_input`` counts the data, and
        ``dist.param_names`` holds the file's names. `load_weights` reads the values.

    Raises
    ------
    ModelError
        DIST0301, DIST0303 the file; DIST0310 to DIST0314, DIST0316, DIST0317 the model.

    Examples
    --------
    >>> from onnx import TensorProto, helper
    >>> x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in "xy")
    >>> graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    >>> td.from_onnx(helper.make_model(graph))["main"].ret_ty
    R.Tensor((2, 8), dtype="float32")
    """
    from tvm_distir.models.onnx.importer import from_onnx as read

    return read(source, batch=batch, dims=dims)


def from_exported_program(
    source: ExportedProgram | str | Path,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    outputs: Literal["user", "all"] = "user",
) -> ir.IRModule:
    """Import a program of ``torch.export``; its weights become parameters of ``main``.

    No weight is read or copied: programs of models on the meta device are taken like others. The
    module of an archive is cached by content, in ``$XDG_CACHE_HOME/tvm-distir/imports``.

    Parameters
    ----------
    source : ExportedProgram, str or Path
        The program, or the ``.pt2`` archive that ``torch.export.save`` wrote. Also a joint graph,
        with a loss and gradients.
    batch : int, optional
        Size of dim 0 of the data. If the program fixes it, the sizes in it that pin the old batch
        are rewritten.
    dims : mapping of str to int, optional
        Sizes for other open dims: by torch's symbol (``s77``), or as ``INPUT.INDEX``.
    outputs : str
        ``user``: what the model returns, a loss and gradients; ``all``: also the new values of
        buffers and inputs that the model writes into.

    Returns
    -------
    IRModule
        ``main(*data, *weights)``; its attribute ``num_input`` counts the data, and
        ``dist.param_names`` holds the names of the data and of the weights as ``state_dict`` has
        them. `load_weights` reads the values.

    Raises
    ------
    ModelError
        DIST0304 without torch; DIST0301, DIST0303 the file; DIST0313, DIST0314 sizes of dims;
        DIST0360 to DIST0362 the program.

    Examples
    --------
    >>> import torch
    >>> program = torch.export.export(torch.nn.Linear(8, 4), (torch.ones(2, 8),))
    >>> mod = td.from_exported_program(program)
    >>> [str(name) for name in mod["main"].attrs["dist.param_names"]]
    ['input', 'weight', 'bias']
    """
    if isinstance(source, (str, Path)):
        check_file(source)
        check_archive(source)
    check_torch("from_exported_program")

    def imported() -> ir.IRModule:
        from tvm_distir.models.torch.importer import from_exported_program as read

        return read(source, batch=batch, dims=dims, outputs=outputs)

    if not isinstance(source, (str, Path)):
        return imported()
    mod = cached_import(source, batch, dims, outputs, imported)
    return mod.with_attr(FRONTEND_ATTR, {"format": "torch", "source": str(source)})


def trace_ranks(
    make: Callable[[int], Any],
    ranks: int,
    *,
    mesh: Mapping[str, int] | None = None,
    sample: int | None = None,
) -> ir.IRModule:
    """Trace the ranks of a PyTorch program in this process, as a module of level 5.

    Each rank is traced under a fake process group: no device, no second process and, where the
    tensors are on the meta device, no memory is needed.

    Parameters
    ----------
    make : function of a rank
        It is called when the process group exists, and returns ``step, parameters, data``: the
        local tensors of a rank by name, and a function of both mappings that returns its results
        by name. A gradient of the parameter ``w`` has the name ``grad:w``.
    ranks : int
        The number of ranks; 1 for the program of a single device.
    mesh : mapping of str to int, optional
        Names and sizes of the axes along which groups are formed, major first; inferred from the
        groups if not given.
    sample : int, optional
        A rank whose program is that of all ranks: no other one is traced.

    Returns
    -------
    IRModule
        An entry function for all ranks, or for each role where their programs differ. Each device
        holds its own inputs, as `tvm_distir.check` shards them.

    Raises
    ------
    ModelError
        DIST0304 without torch; DIST0360, DIST0361 an operator that cannot be imported; DIST0363 a
        collective that has no meaning here; DIST0364 what torch cannot trace.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> def make(rank):
    ...     def step(parameters, data):
    ...         y = data["x"] @ parameters["w"]
    ...         dist.all_reduce(y)
    ...         return {"y": y}
    ...     return step, {"w": torch.ones(4, 8)}, {"x": torch.ones(2, 4)}
    >>> [op.op for op in td.export(td.trace_ranks(make, 2)).functions["main"].ops]
    ['relax.matmul', 'relax.dist.all_reduce']
    """
    check_torch("trace_ranks")
    from tvm_distir.models.torch.ranks import trace_ranks as read

    return read(make, ranks, mesh, sample)


def load_weights(source: Any, *, filled: bool = True) -> Weights:
    """Read the weights of a model, by the names of ``main``'s parameters.

    Parameters
    ----------
    source : IRModule, ModelProto, ExportedProgram, str or Path
        A module that was made of an ONNX file or of a ``.pt2`` archive, the model, or the path.
    filled : bool
        Whether to give weights that an ONNX file only describes (ConstantOfShape nodes) too.

    Raises
    ------
    ModelError
        DIST0315 the weights cannot be read; DIST0301, DIST0303 the file cannot; DIST0304 without
        torch.
    """
    from tvm_distir.models.onnx.weights import load_weights as read

    if isinstance(source, ir.IRModule):
        source = _source_of(source)
    if _is_of_torch(source):
        check_torch("load_weights")
        from tvm_distir.models.torch.archive import load_weights as read_torch

        return read_torch(source)
    return read(source, filled=filled)


def _source_of(mod: ir.IRModule) -> str:
    """Return the file that a module was read from."""
    attrs: Any = mod.attrs or {}
    about = attrs.get(FRONTEND_ATTR)
    if about is None or not about["source"]:
        problem = "the module does not record the file of its weights"
        remedy = "Pass the file or the model to load_weights."
        raise ModelError("DIST0315", problem, location="module", remedy=remedy)
    return str(about["source"])


def _is_of_torch(source: object) -> bool:
    if isinstance(source, (str, Path)):
        return str(source).lower().endswith(".pt2")
    return type(source).__name__ == "ExportedProgram"
