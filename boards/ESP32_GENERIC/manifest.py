# ruff: noqa: F821 - include(), package() and module() are MicroPython's
# Freezes umqtt_robust and the firmware into MicroPython's image of this board:
#
#     make -C micropython/ports/esp32 BOARD=ESP32_GENERIC FROZEN_MANIFEST=$PWD/boards/ESP32_GENERIC/manifest.py

# What the official image freezes.
include("$(PORT_DIR)/boards/manifest.py")
include("../manifest.py")
module("pins.py")
