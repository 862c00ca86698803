"""Switches the radio on as the settings say: for wifi.py, which needs it seldom and forgets it."""

import gc

# On esp32 the driver tries for ever and says "connecting" all the while, unless it is told when to stop.
_DRIVER_TRIES = 2


def prepare(network, settings, call):
    """The WLAN of the station, or None. call(function, *arguments): None where that raises, which it tells."""
    # Both count from the moment when the radio is switched on.
    if settings["country"]:
        call(network.country, settings["country"])
    if settings["hostname"]:
        call(network.hostname, settings["hostname"])
    # What is free of Python's heap goes back to the system of esp32, of which the radio takes its own.
    gc.collect()
    wlan = call(network.WLAN, network.STA_IF)
    if not wlan:
        return None
    call(wlan.active, True)
    if settings["static_ip"]:
        # Ends DHCP on both ports until the radio is switched off.
        call(wlan.ifconfig, tuple(settings["static_ip"]))
    mode = getattr(wlan, "PM_POWERSAVE" if settings["power_save"] else "PM_PERFORMANCE", None)
    if mode is not None:
        call(_configure, wlan, "pm", mode)
    if network.STAT_GOT_IP > 1000:  # esp32
        call(_configure, wlan, "reconnects", _DRIVER_TRIES)
    return wlan


def _configure(wlan, name, value):
    wlan.config(**{name: value})
