"""One file per command: its options, its checks of what was given, and a call of the code that does the work."""
