# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Distribute, lower, verify and simulate Relax modules on the stock ``apache-tvm`` wheel.

Importing the package registers the ``R.dist`` ops and the errors with TVM, and nothing else; the
stages load when they are first used.
"""

from __future__ import annotations

import lazy_loader

from ._versions import check_versions as _check_versions

_check_versions()


def _register() -> None:
    """Tell TVM of our errors and ops. Its runtime-only library knows no ops."""
    from tvm.base import _RUNTIME_ONLY

    from .errors import register_with_ffi

    register_with_ffi()
    if _RUNTIME_ONLY:
        return
    from .ir import register_ops
    from .ops import register_inference
    from .runtime import register_legalization

    register_ops()
    register_inference()
    register_legalization()


_register()

__version__ = "0.1.0"

# The public names, and the folder that each comes from, stand in ``__init__.pyi``.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
