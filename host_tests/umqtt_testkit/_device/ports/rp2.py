"""The `rp2` module of a virtual board that plays an rp2. Hook "bootsel": 1 while the button is held."""

from _virtual import hook


def country(code=None):
    import network

    return network.country() if code is None else network.country(code)


def bootsel_button():
    return 1 if hook("bootsel") else 0
