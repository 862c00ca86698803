"""What the project's command lines share: ``numbers``, option types that refuse nan, infinity and bytes in no unit.

Imports nothing of the project, so that the kit and the ingester may both use it.
"""
