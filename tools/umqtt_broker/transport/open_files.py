"""Open files of the process: as many as there may be connections, and room for them before they come."""

import contextlib
import fcntl
import os
import resource

# What a broker has open beside its connections: listeners, store, log, event loop; and a margin.
_OTHERS = 200
# Entries of the kernel's table of open files that are made at once, 8 bytes each.
_MOST_AT_ONCE = 16384


def make_room(connections: int) -> None:
    """Raise the limit of open files as far as this process may, and have the kernel's table grow now.

    It doubles whenever it is full, and where a process has threads each time waits until no CPU can be reading the old
    one: milliseconds in which a broker that has just begun to serve does nothing. Beyond the limit connections wait in
    the kernel's queue, and the log says so; so nothing here fails.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHERS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):  # some systems have a limit below the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    room = min(wanted, _MOST_AT_ONCE)
    if soft != resource.RLIM_INFINITY:
        room = min(room, soft)
    with contextlib.suppress(OSError), open(os.devnull, "rb") as some:
        os.close(fcntl.fcntl(some.fileno(), fcntl.F_DUPFD_CLOEXEC, room - 1))
