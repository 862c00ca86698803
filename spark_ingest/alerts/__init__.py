"""Alerts: the rules in ``alerts.toml``, the open alerts, and the delivery of messages about them.

``rules`` has the rules, ``groups`` the group and site of each device, ``journal`` the open alerts and unsent
messages, ``destinations`` the recipients, and ``delivery`` the thread that sends. ``gold/sql/alerts.sql`` applies the
rules to data.
"""
