# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Copies the attributes of calls."""

from __future__ import annotations

from typing import Any

from tvm import ir


def changed(attrs: ir.Attrs, **values: Any) -> ir.Attrs:
    """Copy a call's attributes and replace some of them."""
    info = type(attrs).__tvm_ffi_type_info__
    fields = {f.name: getattr(attrs, f.name) for f in info.fields}
    return ir.make_node(str(info.type_key), **{**fields, **values})
