"""See transport_fixtures.py."""

from transport_fixtures import certificates, closed_port, interpreter, mosquitto, program

__all__ = ("certificates", "closed_port", "interpreter", "mosquitto", "program")
