"""Pins of this board by role, for settings and sensors; the same as in board.json.

On the virtual board they lead only to the hooks of the stubs.
"""

LED = 2  # a light
I2C_SCL = 22  # I2C clock of the first bus
I2C_SDA = 21  # I2C data
ONEWIRE = 4  # DS18B20 thermometers
DHT = 27  # DHT22
