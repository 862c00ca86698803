"""A Home Assistant with nothing but MQTT: `python home_assistant.py PORT us|metric`, with a Python that has it.

Each line on stdin is a list of messages [topic, payload, retain], or null to end; for each it publishes these, and
prints the state and the unit of every entity by its unique id.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import paho.mqtt.publish
from homeassistant import auth, config_entries, core, loader
from homeassistant.helpers import (
    area_registry,
    device_registry,
    entity,
    entity_registry,
    issue_registry,
    restore_state,
    translation,
)
from homeassistant.util.unit_system import METRIC_SYSTEM, US_CUSTOMARY_SYSTEM

# Discovery waits for a pause in what it gets.
_SETTLES_S = 2.5


async def main(port: int, units: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "configuration.yaml").touch()
        hass = core.HomeAssistant(folder)
        hass.config.config_dir = folder
        hass.config.units = US_CUSTOMARY_SYSTEM if units == "us" else METRIC_SYSTEM
        hass.config.skip_pip = True
        loader.async_setup(hass)
        hass.config_entries = config_entries.ConfigEntries(hass, {})
        await hass.config_entries.async_initialize()
        entity.async_setup(hass)
        translation.async_setup(hass)
        for registry in (area_registry, device_registry, entity_registry, issue_registry):
            await registry.async_load(hass)
        hass.auth = await auth.auth_manager_from_config(hass, [], [])
        await restore_state.async_load(hass)
        hass.state = core.CoreState.running
        data = {"broker": "127.0.0.1", "port": port, "discovery": True, "discovery_prefix": "homeassistant"}
        entry = config_entries.ConfigEntry(
            version=1, minor_version=2, domain="mqtt", title="broker", data=data, source="user"
        )
        await hass.config_entries.async_add(entry)
        assert entry.state is config_entries.ConfigEntryState.LOADED, entry.state
        while (messages := json.loads(await hass.async_add_executor_job(sys.stdin.readline))) is not None:
            all_of_them = [(topic, payload, 1, retain) for topic, payload, retain in messages]
            await hass.async_add_executor_job(
                lambda these=all_of_them: paho.mqtt.publish.multiple(these, "127.0.0.1", port)
            )
            await asyncio.sleep(_SETTLES_S)
            await hass.async_block_till_done()
            found = {}
            for one in entity_registry.async_get(hass).entities.values():
                state = hass.states.get(one.entity_id)
                found[one.unique_id] = [state.state, state.attributes.get("unit_of_measurement")]
            print(json.dumps(found), flush=True)
        await hass.async_stop(force=True)


asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
