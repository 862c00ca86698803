"""One file a command: its options, its checks of what was given, and a call of what does the work."""
