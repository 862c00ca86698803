"""TLS of links that the broker opens itself: those of bridges, and of a store in Redis."""

import ssl

from ..errors import ConfigError


def make_client_context(cafile: str, capath: str, certfile: str, keyfile: str) -> ssl.SSLContext:
    """Return a TLS context that verifies the server's certificate chain and host name. Reads the files at each call.

    cafile, capath: the only authorities that are trusted; if both are "", those of the system. certfile, keyfile: the
    broker's own certificate and its private key, "" for none. Raises ConfigError, which names the files.
    """

    def refuse_to_ask() -> str:
        # Otherwise OpenSSL would ask on the terminal, also where there is none.
        raise ConfigError(f"keyfile {keyfile} is encrypted — remove its passphrase: openssl pkey -in KEY -out NEW")

    paths = [path for path in (cafile, certfile, keyfile) if path]
    try:
        # The errors of ssl name no file.
        for path in paths:
            open(path, "rb").close()
        context = ssl.create_default_context(cafile=cafile or None, capath=capath or None)
        if certfile:
            context.load_cert_chain(certfile, keyfile, password=refuse_to_ask)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"cannot use {error.filename or ' '.join(paths)} ({error.strerror})") from error
    return context
