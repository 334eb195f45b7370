# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .blocks import NotUnderstood as NotUnderstood
from .call import derive_call as derive_call
from .cut import cut_prim_func as cut_prim_func
from .primfunc import derive_primfunc as derive_primfunc
