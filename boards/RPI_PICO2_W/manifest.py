# ruff: noqa: F821 - include(), package() and module() are MicroPython's
# Freezes umqtt_robust and the firmware into MicroPython's image of this board:
#
#     make -C micropython/ports/rp2 BOARD=RPI_PICO2_W FROZEN_MANIFEST=$PWD/boards/RPI_PICO2_W/manifest.py

# What the official image freezes.
include("$(PORT_DIR)/boards/RPI_PICO2_W/manifest.py")
include("../manifest.py")
module("pins.py")
