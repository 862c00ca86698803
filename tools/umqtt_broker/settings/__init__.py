"""What a broker and its bridges are told to do, as dataclasses."""
