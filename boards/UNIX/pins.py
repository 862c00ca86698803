"""Pins of the virtual board by role. They lead nowhere: machine.Pin reads back what was written."""

LED = 2
