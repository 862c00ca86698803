-- Windows of the metrics that rules are about (view hours), dated as a clock that is whole hours behind should have.
DELETE FROM recent;
INSERT INTO recent
SELECT h.device_id, h.metric, epoch_us(h.window_start) + coalesce(c.behind_us, 0) AS start,
       epoch_us(h.last_ts) + coalesce(c.behind_us, 0), least(greatest(h."sum" / h.n, h."min"), h."max")
FROM hours h LEFT JOIN clocks c USING (device_id)
WHERE h.metric IN (SELECT metric FROM rules)
  AND epoch_us(h.window_start) + coalesce(c.behind_us, 0) >= getvariable('as_of') - getvariable('look_us');
