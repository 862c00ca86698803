"""Switches the radio on as the settings say. wifi.py needs this seldom and unloads it afterwards."""

import gc

# Without this limit, the driver of esp32 tries for ever and reports "connecting" all the while.
_DRIVER_TRIES = 2


def prepare(network, settings, call):
    """Return the WLAN of the station, or None. call(function, *arguments) reports an exception and returns None."""
    # Both take effect when the radio is switched on.
    if settings["country"]:
        call(network.country, settings["country"])
    if settings["hostname"]:
        call(network.hostname, settings["hostname"])
    # On esp32 this returns free heap to the system, from which the radio takes its memory.
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
