# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .ccl import Executed as Executed
from .loader import ABI_VERSION as ABI_VERSION
from .loader import LIBRARY_VARIABLE as LIBRARY_VARIABLE
from .loader import library_path as library_path
from .loader import load_library as load_library
from .reading import ALIAS as ALIAS
from .reading import CAST as CAST
from .reading import FUNCTION as FUNCTION
from .reading import FUNCTION_CALL as FUNCTION_CALL
from .reading import IF as IF
from .reading import ITEM as ITEM
from .reading import OP_CALL as OP_CALL
from .reading import OTHER as OTHER
from .reading import OTHER_CALL as OTHER_CALL
from .reading import TUPLE as TUPLE
from .reading import Member as Member
from .reading import Reading as Reading
from .reading import Readings as Readings
from .reading import elements as elements
from .reading import read_functions as read_functions
from .reading import read_module as read_module
from .reading import unlike_calls as unlike_calls
from .schedule import schedule as schedule
from .survey import Survey as Survey
from .survey import survey as survey
from .tables import INFINITE as INFINITE
from .tables import Array as Array
from .tables import Dual as Dual
from .tables import Elimination as Elimination
from .tables import Factors as Factors
from .tables import Problem as Problem
from .tables import Restriction as Restriction
from .tables import Scope as Scope
from .tables import Tables as Tables
from .tasks import Tasks as Tasks
