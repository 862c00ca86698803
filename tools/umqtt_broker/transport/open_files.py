"""The limit of open files: raises it for as many connections as there may be, and enlarges the kernel's table early."""

import contextlib
import fcntl
import os
import resource

# Files that a broker has open beside its connections: listeners, store, log, event loop; and a margin.
_OTHERS = 200
# Most entries of the kernel's table of open files that are made in advance, 8 bytes each.
_MOST_AT_ONCE = 16384


def make_room(connections: int) -> None:
    """Raise the limit of open files as far as this process may, and make the kernel's table of open files grow now.

    The kernel doubles the table whenever it is full. In a process with threads it then waits until no CPU can be
    reading the old table, which would block a broker for milliseconds while clients connect. Errors are ignored: beyond
    the limit, connections wait in the kernel's queue, and the log says so.
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
