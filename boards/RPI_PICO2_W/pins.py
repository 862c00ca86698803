"""Pins of this board by role, for settings and sensors; the same as in board.json."""

LED = "LED"  # a light
I2C_SCL = 5  # I2C clock of the first bus
I2C_SDA = 4  # I2C data
ONEWIRE = 16  # DS18B20 thermometers
DHT = 17  # DHT22
VSYS = 29  # supply voltage, shared with the Wi-Fi chip
