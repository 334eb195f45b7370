# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .holding import Holding as Holding
from .holding import holdings as holdings
from .notes import ACTIVATION as ACTIVATION
from .notes import GRADIENT as GRADIENT
from .notes import PART as PART
from .notes import STREAM as STREAM
from .notes import TOTAL as TOTAL
from .notes import Pipeline as Pipeline
from .notes import StageNote as StageNote
from .notes import SumNote as SumNote
from .notes import first_stream as first_stream
from .notes import scheduled as scheduled
from .offloading import Absence as Absence
from .offloading import absences as absences
from .orders import ORDERS as ORDERS
from .programs import FETCH as FETCH
from .programs import RECV as RECV
from .programs import RUN as RUN
from .programs import SEND as SEND
from .programs import STORE as STORE
from .programs import Step as Step
from .programs import programs as programs
from .schedule import Schedule as Schedule
from .timeline import Times as Times
from .timeline import in_flight as in_flight
from .timeline import timeline as timeline
from .units import BACKWARD as BACKWARD
from .units import FORWARD as FORWARD
from .units import PHASES as PHASES
from .units import WEIGHT as WEIGHT
from .units import Unit as Unit
from .units import stages_of as stages_of
