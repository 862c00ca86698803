"""Pins of this board by role, for settings and sensors; the same as in board.json."""

I2C_SCL = 9  # I2C clock of the first bus
I2C_SDA = 8  # I2C data
ONEWIRE = 4  # DS18B20 thermometers
DHT = 5  # DHT22
BOOT_BUTTON = 0  # pressed: 0
