# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name the sizes of the zoo that are published models: ``hf:Qwen/Qwen3-8B``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tvm_distir.support import ModelError, nearest, shipped_data

HUB = "hf:"

PUBLISHED: Mapping[str, str] = shipped_data(__file__, "published.json")
"""The model of the zoo of each published name. Names are read in any case, with or without the
publisher, hyphens and underscores."""


def published_names() -> dict[str, str]:
    """Return the names of the hub by what a MODEL string may write: lowercase, owner optional."""
    names = {full.lower(): full for full in PUBLISHED}
    names.update({full.lower().partition("/")[2]: full for full in PUBLISHED})
    return names


def _letters(name: str) -> str:
    """Return the letters and digits of a name, by which it is known: ``llama3.18b``."""
    return re.sub(r"[\s_-]+", "", name.lower())


def zoo_spec(spec: str) -> str:
    """Return the MODEL string of the zoo for ``hf:NAME?key=value,...``; others unchanged.

    Raises
    ------
    ModelError
        DIST0330 for a name that is not in the list.
    """
    if not spec.startswith(HUB):
        return spec
    model, (_, mark, keys) = PUBLISHED[published_name(spec)], spec.partition("?")
    return f"zoo:{model},{keys}" if mark else f"zoo:{model}"


def published_name(spec: str) -> str:
    """Return the published name of ``hf:NAME?key=value,...``; raises as :func:`zoo_spec`."""
    name = spec.removeprefix(HUB).partition("?")[0]
    names = published_names()
    by_letters = {_letters(known): known for known in reversed(names)}
    known = by_letters.get(_letters(name))
    if known is None:
        problem = "the list of published models does not have this name"
        family = [n for n in names if "/" not in n and _letters(n).startswith(_letters(name))]
        remedy = f"Of this family: {', '.join(family)}." if family else nearest(name.lower(), names)
        remedy += " Or give the path of its config.json."
        raise ModelError("DIST0330", problem, location=f"{HUB}{name}", remedy=remedy)
    return names[known]
