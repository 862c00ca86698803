"""Puts a MicroPython image onto a board: the work behind `umqtt flash`, without its options and output.

images   what an image file is for, and whether it is whole
esp      ESP32 family: writes the image with esptool, over the serial port
uf2      RP2 family: copies the image onto the drive of the boot loader
"""
