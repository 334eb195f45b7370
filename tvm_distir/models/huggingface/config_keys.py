# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read single keys of a ``config.json``, and refuse those that are unknown or wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm_distir.support import ModelError, shipped_data

NOT_IN_GRAPH = frozenset(shipped_data(__file__, "config_keys.json"))
"""Keys that do not change the graph of a forward pass: what initializes, trains or decodes.
Positions bound the sequence; layers of multi-token prediction are read by training code only. What
quantizes is stated by :mod:`.quantized_config`."""


class ConfigKeys:
    """Reader of the keys of a configuration, which says which keys nothing has read."""

    def __init__(self, data: Mapping[str, Any], location: str) -> None:
        self.data, self.location = data, location
        self.unread = {key for key in data if key not in NOT_IN_GRAPH}

    @property
    def dtype(self) -> str:
        """Return the name of the dtype of weights and activations."""
        dtype = self.data.get("dtype") or self.data.get("torch_dtype") or "float32"
        return str(dtype).removeprefix("torch.")

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value; the default where it is missing or null."""
        self.unread.discard(key)
        value = self.data.get(key)
        return default if value is None else value

    def number(self, key: str, default: float | None = None) -> Any:
        """Return a number, which must be there without a default."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            problem = f"{key} is missing" if value is None else f"{key} is not a number: {value!r}"
            raise self.fault(problem, "Give the config.json that the model publishes.")
        return value

    def flag(self, key: str, default: bool = False) -> int:
        """Return 1 for true."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.fault(f"{key} is not true or false: {value!r}", "Correct it.")
        return int(value)

    def require(self, key: str, *values: Any) -> None:
        """Refuse any other value of a key that changes the graph."""
        value = self.get(key, values[0])
        if value not in values:
            known = " or ".join(map(repr, values))
            raise self.fault(f"{key}={value!r} is not supported", f"Known: {known}.")

    def fault(self, problem: str, remedy: str) -> ModelError:
        """Return the error DIST0334."""
        return ModelError("DIST0334", problem, location=self.location, remedy=remedy)
