"""See transport_fixtures.py."""

from transport_fixtures import certificates, interpreter, mosquitto, program

__all__ = ("certificates", "interpreter", "mosquitto", "program")
