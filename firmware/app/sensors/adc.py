"""Opens a pin that measures a voltage, for the drivers that need one."""

from machine import ADC, Pin


def open_adc(pin):
    if hasattr(ADC, "ATTN_11DB"):
        # esp32: the range up to about 3.1 V, calibrated in the factory.
        return ADC(Pin(pin), atten=ADC.ATTN_11DB)
    return ADC(Pin(pin))
