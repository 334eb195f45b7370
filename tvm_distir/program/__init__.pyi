# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .checks import call_order as call_order
from .exporter import export as export
from .numbers import Numbers as Numbers
from .numbers import edges_of as edges_of
from .numbers import numbers_of as numbers_of
from .parts import SCHEMA_VERSION as SCHEMA_VERSION
from .parts import STAGED_VERSION as STAGED_VERSION
from .parts import Entry as Entry
from .parts import Function as Function
from .parts import Mesh as Mesh
from .parts import Op as Op
from .parts import Value as Value
from .parts import reached as reached
from .program import Program as Program
from .staged import BEGIN as BEGIN
from .staged import END as END
from .staged import Edge as Edge
from .staged import Phase as Phase
from .staged import Role as Role
from .staged import Stage as Stage
from .staged import Staged as Staged
from .staged import StageSum as StageSum
from .storage import BRANCH as BRANCH
from .storage import CALL as CALL
from .storage import FREE as FREE
from .storage import RETURN as RETURN
from .storage import TAKE as TAKE
from .storage import Storage as Storage
from .storage import StorageFunction as StorageFunction
from .storage import StorageStep as StorageStep
from .unit_phases import UPDATE as UPDATE
from .unit_phases import once_slots as once_slots
from .unit_phases import unit_phases as unit_phases
