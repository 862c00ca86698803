"""Pins of this board by role, for settings and sensors; the same as in board.json."""

I2C_SCL = 7  # I2C clock of the first bus
I2C_SDA = 6  # I2C data
ONEWIRE = 10  # DS18B20 thermometers
DHT = 11  # DHT22
BOOT_BUTTON = 9  # pressed: 0
