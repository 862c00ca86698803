"""Starts the application. Every decision lies in the package app; see app/__init__.py."""

from app import application, health

try:
    application.build().run()
except Exception as error:
    # Kept in flash and published after the next boot; the console shows it now.
    health.keep_traceback(error)
    raise
