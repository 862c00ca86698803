# ruff: noqa: F821 - include(), package() and module() are MicroPython's
# Freezes umqtt_robust and the firmware into the unix port of MicroPython, with which the virtual board can run:
#
#     make -C micropython/ports/unix FROZEN_MANIFEST=$PWD/boards/UNIX/manifest.py
#     UMQTT_MICROPYTHON=micropython/ports/unix/build-standard/micropython python -m umqtt_testkit.board flash.img

# What the port freezes by itself.
include("$(PORT_DIR)/variants/manifest.py")
include("../manifest.py")
module("pins.py")
