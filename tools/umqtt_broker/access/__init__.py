"""Who may connect, publish and subscribe."""
