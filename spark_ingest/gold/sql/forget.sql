-- Forget what only alerts that ended long ago need: once an hour. A silence needs the time in which the device was heard before it.
DELETE FROM awake USING (
    SELECT device_id, "first", row_number() OVER (PARTITION BY device_id ORDER BY "last" DESC) AS nth,
           lead("first") OVER (PARTITION BY device_id ORDER BY "last") AS ended FROM awake) old
WHERE awake.device_id = old.device_id AND awake."first" = old."first"
  AND (old.nth > 81 OR old.ended <= (SELECT newest_us FROM facts) - getvariable('kept_us'));
DELETE FROM refused WHERE last_us <= (SELECT newest_us FROM facts) - getvariable('kept_us') - 86400000000;
