# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write tables of functions by the names of the operators that they convert."""

from __future__ import annotations

from typing import TypeVar

Function = TypeVar("Function")


def by_name(*entries: tuple[Function, str]) -> dict[str, Function]:
    """Return functions by name, from each function and its names, with blanks between them."""
    return {name: function for function, names in entries for name in names.split()}
