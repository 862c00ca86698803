"""pm1_ugm3, pm25_ugm3 and pm10_ugm3 of a Plantower PMS5003: {"module": "pms5003", "uart": 1, "rx": 16, "tx": 17}

The pin `rx` is connected to the sensor's TXD, which sends once a second or more often; tx may stay free. Data sheet:
Plantower PMS5003, appendix I.
"""

from machine import UART, Pin

_LENGTH = 32


class Sensor:
    metrics = {"pm1_ugm3": (0, 1000), "pm25_ugm3": (0, 1000), "pm10_ugm3": (0, 1000)}

    def __init__(self, uart, rx, tx):
        self._uart = UART(uart, baudrate=9600, rx=Pin(rx), tx=Pin(tx), rxbuf=4 * _LENGTH)

    def read(self):
        data = self._uart.read() or b""
        # The newest complete frame is the last one.
        at = data.rfind(b"\x42\x4d\x00\x1c", 0, len(data) - _LENGTH + 4)
        if at < 0 or len(data) < _LENGTH:
            raise OSError("no frame came: look at its TXD and its 5 V")
        frame = data[at : at + _LENGTH]
        if sum(frame[:-2]) != frame[30] << 8 | frame[31]:
            raise OSError("its checksum is wrong: noise on the wire")
        # Words 4 to 6: in the air, not for the calibration in a factory.
        return {
            "pm1_ugm3": frame[10] << 8 | frame[11],
            "pm25_ugm3": frame[12] << 8 | frame[13],
            "pm10_ugm3": frame[14] << 8 | frame[15],
        }
