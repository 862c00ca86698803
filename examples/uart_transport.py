"""A transport of your own in a dozen lines: MQTT over a serial line that loses no bytes (short, or with RTS and CTS).

    from machine import UART
    from uart_transport import Serial

    uart = UART(1, 115200, timeout=0)  # timeout=0: read and write return at once
    client = Client("pump-7", "mqtt://uart", transports={"mqtt": lambda host, port, path: Serial(uart)})

The other end passes the bytes on to a broker, for instance `socat /dev/ttyUSB0,raw,b115200 TCP:127.0.0.1:1883`. A
serial line does not report that it is cut; the client notices by keep_alive. For a line that may lose bytes, use
umqtt_robust.serial.
"""

import select


class Serial:
    def __init__(self, uart):
        self.socket = uart
        self._poller = select.poll()
        self._poller.register(uart, select.POLLIN)

    def ready(self):
        return True

    def read(self, buf, offset):
        return self.socket.readinto(memoryview(buf)[offset:]) or None

    def write(self, buf, offset, size):
        return self.socket.write(memoryview(buf)[offset : offset + size])

    def wait(self, ms, writing):
        self._poller.modify(self.socket, select.POLLIN | (select.POLLOUT if writing else 0))
        self._poller.poll(ms)

    def close(self):
        """Do nothing: the line stays open, only the MQTT connection on it ends."""
