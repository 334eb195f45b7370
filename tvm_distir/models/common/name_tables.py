# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write tables of values by the names of operators."""

from __future__ import annotations

from typing import TypeVar

Entry = TypeVar("Entry")


def by_name(*entries: tuple[Entry, str]) -> dict[str, Entry]:
    """Return values by name, from each value and its names, with blanks between them."""
    return {name: entry for entry, names in entries for name in names.split()}
