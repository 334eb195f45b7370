# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the variables that values are computed from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import relax

from tvm_distir.core.rewriting.substitute import variables
from tvm_distir.support import reachable


def dependencies(values: Iterable[Any], bindings: Iterable[relax.Binding]) -> set[Any]:
    """Return variables and all those that bindings compute them from."""
    bound = {binding.var: binding.value for binding in bindings}
    return set(reachable(values, lambda var: variables(bound[var]) if var in bound else ()))
