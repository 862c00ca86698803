"""Putting a MicroPython image onto a board: what `umqtt flash` does, without its options and its output.

images   what an image file is for, and whether it is whole
esp      ESP32 family: by esptool, over the serial port
uf2      RP2 family: by a copy onto the drive that its boot loader is
"""
