-- Fill the table `found` with the alerts that follow from the state.
DELETE FROM found;
-- WHEN silent, paused
INSERT INTO found FROM lately('offline');
-- WHEN gaps
INSERT INTO found FROM lately('gap');
-- WHEN often
INSERT INTO found FROM lately('reboot_loop');
-- WHEN falling
INSERT INTO found FROM lately('memory_falling');
-- WHEN refused
INSERT INTO found FROM lately('quarantined');
-- WHEN firmware_rules
INSERT INTO found FROM lately('firmware');
