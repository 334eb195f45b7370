# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import packages of extras, and name the extra where a package is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tvm_distir.support.errors.tree import DependencyError


def missing_extra(problem: str, location: str, extra: str) -> DependencyError:
    """Return the error DIST0111 for an optional dependency that is not installed.

    Parameters
    ----------
    problem, location : str
        What is missing, and what requires it.
    extra : str
        The extra of this package that installs it.
    """
    remedy = f'Install the extra: pip install "tvm_distir[{extra}]".'
    return DependencyError("DIST0111", problem, location=location, remedy=remedy)


def optional_module(name: str, location: str, extra: str) -> Any:
    """Import a module of an optional dependency.

    Parameters
    ----------
    name : str
    location : str
        What requires it.
    extra : str
        The extra of this package that installs it.

    Raises
    ------
    DependencyError
        DIST0111 where it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != name.split(".")[0]:
            raise
        raise missing_extra(f"{name.split('.')[0]} is not installed", location, extra) from None
