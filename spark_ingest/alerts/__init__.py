"""Alerts: the rules of ``alerts.toml``, which of them are open, and how people are told.

``rules`` is what to look for, ``groups`` where devices belong, ``journal`` what is open and what was not sent yet,
``destinations`` whom to tell, ``delivery`` the thread that tells them. What the rules are applied to lies in
``pipeline/gold_alerts`` and ``pipeline/metric_alerts``.
"""
