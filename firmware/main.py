"""Starts the application. Every decision lies in the package app; see app/__init__.py."""

from app import health

try:
    # Within the try: a file missing after a deployment cut short is a crash to be told about like any other.
    from app import application

    application.build().run()
except Exception as error:
    # Kept in flash and published after the next boot; the console shows it now.
    health.keep_traceback(error)
    raise
