# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Load the templates of pages and of code."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def templates_of(package: str, *, escape: bool) -> Environment:
    """Return the templates in the folder ``assets`` of a package.

    Parameters
    ----------
    package : str
    escape : bool
        Whether values are escaped, as HTML requires.
    """
    return Environment(
        loader=PackageLoader(package, "assets"),
        autoescape=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
