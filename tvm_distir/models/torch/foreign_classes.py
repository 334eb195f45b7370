# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Register stand-ins for classes and operators of other packages that an archive names.

A model of `transformers` returns a class of that package, and its experts call an operator of it;
``torch.export.load`` refuses an archive that names what no imported package has registered. The
import reads neither values of such classes nor the operator's code: a stand-in is enough, and the
package need not be installed.
"""

from __future__ import annotations

import importlib.util
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tvm_distir.support import ModelError

_GROUPED = "transformers::grouped_mm_fallback"
_SCHEMA = "grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor"
_GROUPED_MODULE = "transformers.integrations.moe"
_TARGET = "torch.ops."
_libraries: list[torch.library.Library] = []
"""Keeps the operators of stand-ins registered."""


def register_stand_ins(path: str | Path) -> None:
    """Register what the programs of an archive name and no imported package has registered.

    Raises
    ------
    ModelError
        DIST0360 for an operator that the importer does not support.
    """
    for program in _programs(path):
        module = program.get("graph_module") or {}
        for name in sorted(_class_names(module)):
            if name not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
                _register_class(name)
        for target in sorted(_targets(module)):
            _register_operator(target, str(path))


def _programs(path: str | Path) -> Iterator[dict[str, Any]]:
    """Return the programs of an archive; none if it is not of a known form, as torch will say."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if "/models/" in name and name.endswith(".json"):
                try:
                    program = json.loads(archive.read(name))
                except (ValueError, RecursionError):
                    continue
                if isinstance(program, dict):
                    yield program


def _class_names(module: dict[str, Any]) -> set[str]:
    """Return the classes of the inputs and outputs of a program and its modules."""
    names: set[str] = set()
    for entry in module.get("module_call_graph") or ():
        signature = entry.get("signature") or {}
        for key in ("in_spec", "out_spec"):
            if signature.get(key):
                _, tree = json.loads(signature[key])
                _add_names(tree, names)
    return names


def _add_names(tree: dict[str, Any], names: set[str]) -> None:
    if tree.get("type"):
        names.add(str(tree["type"]))
    for child in tree.get("children_spec") or ():
        _add_names(child, names)


def _targets(module: dict[str, Any]) -> set[str]:
    nodes = (module.get("graph") or {}).get("nodes") or ()
    return {str(node["target"]) for node in nodes if str(node["target"]).startswith(_TARGET)}


def _register_class(name: str) -> None:
    """Register a class that holds the leaves of one of another package.

    When that package is imported later, its registration replaces this one.
    """
    stand_in = type(name.rpartition(".")[2], (tuple,), {})
    pytree.register_pytree_node(
        stand_in,
        lambda value: (list(value), None),
        lambda leaves, _: stand_in(leaves),
        serialized_type_name=name,
        to_dumpable_context=json.dumps,
        from_dumpable_context=lambda _: None,
    )


def _register_operator(target: str, location: str) -> None:
    namespace, _, rest = target.removeprefix(_TARGET).partition(".")
    name = rest.partition(".")[0]
    if hasattr(getattr(torch.ops, namespace), name):
        return
    if f"{namespace}::{name}" != _GROUPED:
        problem = f"the importer does not support {namespace}.{rest}"
        remedy = "Write the model with other operators, or export it to ONNX."
        raise ModelError("DIST0360", problem, location=location, remedy=remedy)
    if importlib.util.find_spec("transformers") is not None:
        importlib.import_module(_GROUPED_MODULE)
        return
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(_SCHEMA)
    torch.library.register_fake(_GROUPED, _grouped_shape, lib=library)
    _libraries.append(library)


def _grouped_shape(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return input.new_empty((input.shape[0], weight.shape[2]))
