"""The settings of a broker and its bridges, as dataclasses."""
