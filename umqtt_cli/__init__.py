"""Code that the project's command lines share.

``numbers`` has option types that refuse nan, infinity and unknown units of bytes. This package imports nothing of the
project, so that both the kit and the ingester can use it.
"""
