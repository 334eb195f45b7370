# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .cases import Case as Case
from .cases import case as case
from .cases import var as var
from .draws import above_one as above_one
from .draws import bits as bits
from .draws import distinct as distinct
from .draws import index_below as index_below
from .draws import multiples_of_half as multiples_of_half
from .draws import nonzero as nonzero
from .draws import positive as positive
from .draws import specials as specials
from .draws import unit as unit
from .proof import Proof as Proof
from .proof import prove as prove
from .proof import validate as validate
