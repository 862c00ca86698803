"""What every part needs: settings, counts, time and limits."""
