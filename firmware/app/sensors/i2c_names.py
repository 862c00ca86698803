"""Names the chips that answer on an I2C bus: by their id, or, if they have none, by their usual address."""

# Addresses, the register of the id, and the names by id.
_BY_ID = (
    ((0x76, 0x77), 0xD0, {0x60: "BME280", 0x58: "BMP280", 0x61: "BME680 or BME688"}),
    ((0x68, 0x69), 0x75, {0x68: "MPU6050"}),
    ((0x29,), 0xC0, {0xEE: "VL53L0X"}),
    (range(0x40, 0x50), 0xFF, {0x22: "INA226"}),
)
_BY_ADDRESS = {
    0x23: "BH1750", 0x38: "AHT20 or AHT10", 0x44: "SHT3x or SHT4x", 0x45: "SHT3x or SHT4x", 0x48: "ADS1115",
    0x5C: "BH1750", 0x62: "SCD4x",
}  # fmt: skip


def found_on(i2c):
    """Return a text for each address that answers: ["0x76 answers: a BME280 by its id"]."""
    texts = []
    for address in i2c.scan():
        name, by = _BY_ADDRESS.get(address), "address"
        for addresses, register, names in _BY_ID:
            try:
                known = address in addresses and names.get(i2c.readfrom_mem(address, register, 1)[0])
            except OSError:
                continue  # a chip without registers
            if known:
                name, by = known, "id"
        texts.append("0x%02x answers" % address + (": a %s by its %s" % (name, by) if name else ""))
    return texts


def nobody_at(i2c, address):
    """Return why a chip cannot be used: nothing answers at its address, but this does at others."""
    others = found_on(i2c) or ["and nothing at any other: look at SDA, SCL and the power"]
    return "nothing answers at 0x%02x; %s" % (address, "; ".join(others))
