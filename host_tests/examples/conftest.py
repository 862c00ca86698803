"""The examples' tests run their programs with the fixtures of the transports' tests."""

from transport_fixtures import certificates, interpreter, mosquitto, program

__all__ = ("certificates", "interpreter", "mosquitto", "program")
