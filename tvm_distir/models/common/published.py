# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name the sizes of the zoo that are published models: ``hf:Qwen/Qwen3-8B``."""

from __future__ import annotations

from collections.abc import Mapping

from tvm_distir.support import ModelError, nearest, shipped_data

HUB = "hf:"

PUBLISHED: Mapping[str, str] = shipped_data(__file__, "published.json")
"""The model of the zoo of each published name. Names are read in any case, with or without the
publisher."""


def published_names() -> dict[str, str]:
    """Return the names of the hub by what a MODEL string may write: lowercase, owner optional."""
    names = {full.lower(): full for full in PUBLISHED}
    names.update({full.lower().partition("/")[2]: full for full in PUBLISHED})
    return names


def zoo_spec(spec: str) -> str:
    """Return the MODEL string of the zoo for ``hf:NAME?key=value,...``; others unchanged.

    Raises
    ------
    ModelError
        DIST0330 for a name that is not in the list.
    """
    if not spec.startswith(HUB):
        return spec
    name, mark, keys = spec.removeprefix(HUB).partition("?")
    names = published_names()
    if name.lower() not in names:
        problem = "the list of published models does not have this name"
        remedy = f"{nearest(name.lower(), names)} Or give the path of its config.json."
        raise ModelError("DIST0330", problem, location=f"{HUB}{name}", remedy=remedy)
    model = PUBLISHED[names[name.lower()]]
    return f"zoo:{model},{keys}" if mark else f"zoo:{model}"
