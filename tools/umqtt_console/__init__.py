"""The console: one web application for a whole fleet, on the tables that the pipeline writes and on MQTT.

    tables.py, fleet.py, device.py, path.py    what the tables say, by DuckDB; no Spark
    live.py                                    what the broker says now
    acts.py                                    commands of `umqtt` that the console runs for an operator, and their log
    explore.py                                 SQL of a viewer, in a process of its own
    access.py                                  who may see and do what
    events.py                                  what has changed, to all viewers (server-sent events)
    routes.py, api.py                          the HTTP API: its table, its handlers
    app.py                                     the guard before every request, and the page's files
    page/                                      the page

It imports nothing of `umqtt_kit`: the command `umqtt console` makes its parts and gives them to it.
"""
