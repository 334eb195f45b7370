# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Classes of like bindings: what one of them tells serves all."""

from __future__ import annotations

from typing import Any

from tvm import ir

from tvm_distir.core.ops.memory import learned
from tvm_distir.core.ops.terms import CallForm, attribute_axes


class Classes:
    """What bindings that are alike have in common, in all functions of all modules.

    Parameters
    ----------
    mod : IRModule
        At level 3.
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self.mod = mod
        self.forms: dict[int, CallForm] = learned("forms")
        self.staying: dict[int, bool] = learned("stays")

    def stays(self, like: int, value: Any) -> bool:
        """Whether a binding of a class stays as it is where nothing that it reads has changed."""
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
