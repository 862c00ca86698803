"""vibration_ms2 of an InvenSense MPU6050 on I2C: {"module": "mpu6050", "scl": 22, "sda": 21}

The figure is the root mean square of the acceleration around its mean, over half a second or more of 100 samples a
second, below 44 Hz. address: 104 (default) or 105. Data sheet: InvenSense RM-MPU-6000A, 4.4 to 4.31.
"""

from math import sqrt
from struct import unpack_from

from app.sensors.i2c import Chip

_RATE, _FULL_SCALE, _FIFO, _CONTROL, _POWER = 0x19, 0x1C, 0x23, 0x6A, 0x6B
_COUNT, _DATA, _ID = 0x72, 0x74, 0x75
_FIFO_SIZE = 1024
# m/s² of one step, at 16 g full scale.
_STEP = 9.80665 / 2048


class Sensor(Chip):
    address = 0x68
    lead_ms = 500
    metrics = {"vibration_ms2": (0, 272)}

    def setup(self):
        self.check_id(_ID, 0x68)
        self.store(_POWER, 1)
        self.store(_RATE, 9, 3)  # a tenth of 1 kHz; in the register after it, a filter of 44 Hz
        self.store(_FULL_SCALE, 0x18)

    def start(self):
        self.store(_FIFO, 0)
        self.store(_CONTROL, 0x44)  # empty the FIFO and use it
        self.store(_FIFO, 0x08)  # acceleration

    def read(self):
        self.store(_FIFO, 0)
        count = self.load_word(_COUNT)
        if not 60 <= count < _FIFO_SIZE:
            raise OSError("its FIFO has %d bytes: did it lose its power, or was the reading late?" % count)
        first, sums, squares = (), [0, 0, 0], 0
        for _ in range(count // 6):
            sample = unpack_from(">hhh", self.load(_DATA, 6))
            first = first or sample
            for axis in range(3):
                step = sample[axis] - first[axis]  # small numbers, which take no heap
                sums[axis] += step
                squares += step * step
        samples = count // 6
        variance = squares / samples - sum([(total / samples) ** 2 for total in sums])
        if not any(first) and not variance:
            raise OSError("it reads all zeros: a bad wire")
        return {"vibration_ms2": round(sqrt(max(variance, 0)) * _STEP, 3)}
