"""How long the broker's tests wait."""

# Seconds any wait may take before the test fails. Waits end when what they wait for happens: only a broken broker is
# waited for that long, and a busy machine has time.
PATIENCE = 30.0
