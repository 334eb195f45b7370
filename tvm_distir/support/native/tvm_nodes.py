# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check the fields of TVM's nodes that the native code of ``passes/ffi`` accesses.

That code is built without headers of TVM: it looks types, fields and functions up by name at run
time. A test compares ``tvm_nodes.json`` with the names in the sources of ``passes/ffi``.
"""

from __future__ import annotations

import functools

from tvm_distir.support.config.files import shipped_data
from tvm_distir.support.errors.tree import DependencyError
from tvm_distir.support.tvm.private_names import type_info

_NODES = shipped_data(__file__, "tvm_nodes.json")
FIELDS: dict[str, list[str]] = _NODES["fields"]
"""The fields that are read, by type key. No node is ever changed."""
TYPE_KEYS: list[str] = _NODES["types"]
"""Further types that are only recognized."""
MOVED: dict[str, str] = _NODES["moved"]
"""The keys that TVM 0.26 has for nodes that 0.27 moved to its common IR."""
FUNCTIONS: list[str] = _NODES["functions"]
"""Global functions that create nodes."""


@functools.cache
def check_nodes() -> None:
    """Check once that the TVM in use has every node, field and function that is accessed.

    Raises
    ------
    DependencyError
        DIST0115, with the name of the node and of the field, for the first that is missing.
    """
    import tvm  # noqa: F401 - it registers the nodes
    import tvm_ffi

    for key in (*FIELDS, *TYPE_KEYS):
        info = type_info(key) or (key in MOVED and type_info(MOVED[key]))
        if not info:
            raise _missing(f'no node "{key}"')
        names = {field.name for field in info.fields}
        for field in FIELDS.get(key, ()):
            if field not in names:
                raise _missing(f'no field "{field}" of the node "{key}"')
    for name in FUNCTIONS:
        if tvm_ffi.get_global_func(name, allow_missing=True) is None:
            raise _missing(f'no function "{name}", which creates nodes')


def _missing(problem: str) -> DependencyError:
    from tvm_distir.support.versions import REMEDY

    return DependencyError(
        "DIST0115",
        f"this TVM has {problem}; the native library accesses it",
        location="native library",
        remedy=f"Install the versions that the plugin supports: {REMEDY}.",
    )
