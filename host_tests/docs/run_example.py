"""Runs argv[1], an example of the docs, with every host that ends in .example at 127.0.0.1:argv[2].

For both interpreters.
"""

import socket
import sys

program, port = sys.argv[1], int(sys.argv[2])


class Socket:
    """A replacement of the module except for getaddrinfo, since MicroPython's own module cannot be changed."""

    def __getattr__(self, name):
        return getattr(socket, name)

    def getaddrinfo(self, host, service, *rest):
        if host.endswith(".example"):
            host, service = "127.0.0.1", port
        return socket.getaddrinfo(host, service, *rest)


sys.modules["socket"] = Socket()
with open(program) as file:
    exec(compile(file.read(), program, "exec"), {"__name__": "__main__"})
