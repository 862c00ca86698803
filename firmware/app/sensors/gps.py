"""lat_deg, lon_deg, alt_m and satellites of a GPS receiver: {"module": "gps", "uart": 1, "rx": 16, "tx": 17}

The pin `rx` is connected to the receiver's TX. baudrate: 9600 (default); tx may stay free. Boards compute with
32 bits: to about a metre. Sentences: NMEA 0183, GGA.
"""

from machine import UART, Pin


class Sensor:
    metrics = {"lat_deg": (-90, 90), "lon_deg": (-180, 180), "alt_m": (-500, 20000), "satellites": (0, 99)}

    def __init__(self, uart, rx, tx, baudrate=9600):
        # A second of sentences.
        self._uart = UART(uart, baudrate=baudrate, rx=Pin(rx), tx=Pin(tx), rxbuf=1024)
        self.problem = None

    def read(self):
        lines = (self._uart.read() or b"").split(b"\r\n")[:-1]
        found = [line for line in lines if line[3:6] == b"GGA"]
        if not found:
            raise OSError("no position came: look at its TX and its baud rate")
        fields = _checked(found[-1]).split(",")
        fixed = fields[6] not in ("", "0")
        self.problem = None if fixed else "it sees too few satellites"
        if not fixed:
            return {"satellites": int(fields[7] or 0)}
        return {
            "lat_deg": _degrees(fields[2], 2, fields[3] == "S"),
            "lon_deg": _degrees(fields[4], 3, fields[5] == "W"),
            "alt_m": float(fields[9]) if fields[9] else None,
            "satellites": int(fields[7]),
        }


def _checked(line):
    # Returns the text between $ and *, whose exclusive or is the number after *.
    body, star, number = line[1:].partition(b"*")
    total = 0
    for byte in body:
        total ^= byte
    if not star or int(number, 16) != total:
        raise OSError("its checksum is wrong: noise on the wire")
    return body.decode()


def _degrees(text, digits, negative):
    # Degrees and minutes, as 4807.038 for 48 degrees and 7.038 minutes.
    value = round(int(text[:digits]) + float(text[digits:]) / 60, 6)
    return -value if negative else value
