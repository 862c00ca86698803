"""The settings of a broker, as dataclasses."""
