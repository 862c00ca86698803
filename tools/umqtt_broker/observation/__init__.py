"""Shows a running broker to operators: `$SYS` topics, Prometheus metrics, an HTTP API and a live web page.

    observation   Observation: starts and stops all of it
    sys_topics    the `$SYS` topics, mosquitto's and our own
    metrics       the same figures for Prometheus
    server        the HTTP listener: guard (token, Host, Origin), api (routes), openapi, the page's files in page/
    readings, survey, rates   where all figures come from; nothing here costs the packet loop anything

aiohttp and prometheus_client are imported when the HTTP listener is switched on, never before.
"""

from .observation import Observation

__all__ = ["Observation"]
