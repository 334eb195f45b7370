# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Group equal bindings into classes that share their analysis."""

from __future__ import annotations

from typing import Any

from tvm import ir

from tvm_distir.core.ops.class_memo import learned
from tvm_distir.core.ops.terms import CallForm, attribute_axes


class Classes:
    """Properties of classes of equal bindings, in all functions of all modules.

    Parameters
    ----------
    mod : IRModule
        The module, at level 3.
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self.mod = mod
        self.forms: dict[int, CallForm] = learned("forms")
        self.staying: dict[int, bool] = learned("stays")

    def stays(self, like: int, value: Any) -> bool:
        """Return whether a binding of a class is unchanged if its operands are."""
        if like < 0:
            return False
        stays = self.staying.get(like)
        if stays is None:
            stays = self.staying[like] = self._is_plain(value)
        return stays

    def _is_plain(self, value: Any) -> bool:
        if type(value) is not ir.Call:
            return True
        if type(value.op) is ir.GlobalVar:
            callee = self.mod[value.op]
            return not any(attribute_axes(callee, side) for side in ("params", "results"))
        return False

    def finish(self, like: int, form: CallForm | None) -> None:
        """Keep how the calls of a class are sharded; None: they hold no DTensor."""
        if like < 0:
            return
        self.staying[like] = form is None or not form.terms
        if form is not None:
            self.forms[like] = form
