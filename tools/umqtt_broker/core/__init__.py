"""What every part uses: settings, counters, time and limits."""
