"""Runs before main.py at every boot: puts what was deployed before what is frozen into the image.

A frozen image carries umqtt_robust and app too. The application in the root folder comes first by
MicroPython's own order; a deployed /lib would come last, so that an update of the library would be ignored.
"""

import gc
import sys

_LIB = "/lib"
_FROZEN = ".frozen"

if _FROZEN in sys.path:
    if _LIB in sys.path:
        sys.path.remove(_LIB)
    sys.path.insert(sys.path.index(_FROZEN), _LIB)

gc.collect()
