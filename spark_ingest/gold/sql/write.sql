-- Settle what follows from the changes since the gold tables were written: gaps, percentiles, and the days to write.

DELETE FROM clocks;
INSERT INTO clocks
SELECT device_id, hours * 3600000000
FROM (SELECT device_id, round(min(least_us) / 3600e6)::BIGINT AS hours, min(least_us) AS lowest, max(most_us) AS highest
      FROM delays GROUP BY device_id HAVING count(*) >= 3)
WHERE hours BETWEEN 1 AND 26 AND lowest >= hours * 3600e6 - 300e6 AND highest <= hours * 3600e6 + 300e6;

CREATE OR REPLACE TEMP TABLE holed AS
SELECT device_id, boot FROM runs SEMI JOIN changed USING (device_id, boot) GROUP BY ALL HAVING count(*) > 1 OR min("first") > 0
UNION SELECT device_id, boot FROM explained SEMI JOIN changed USING (device_id, boot)
UNION SELECT device_id, boot FROM gaps SEMI JOIN changed USING (device_id, boot);
-- WHEN holed
CREATE OR REPLACE TEMP TABLE new_gaps AS FROM fresh_gaps;
CREATE OR REPLACE TEMP TABLE old_gaps AS FROM gaps SEMI JOIN holed USING (device_id, boot);
INSERT INTO pending SELECT DISTINCT 'gaps', day
FROM ((FROM new_gaps EXCEPT SELECT * FROM old_gaps) UNION ALL (FROM old_gaps EXCEPT SELECT * FROM new_gaps));
DELETE FROM gaps USING holed h WHERE gaps.device_id = h.device_id AND gaps.boot = h.boot;
INSERT INTO gaps BY NAME FROM new_gaps;
-- ALWAYS
INSERT INTO pending
SELECT DISTINCT 'boots', day FROM (SELECT unnest([heard_us // 86400000000, written_day]) AS day
                                   FROM dated SEMI JOIN changed USING (device_id, boot)) WHERE day IS NOT NULL;
UPDATE boots SET written_day = coalesce(boots.last_us, boots.born.us) // 86400000000 FROM changed c
WHERE boots.device_id = c.device_id AND boots.boot = c.boot;
DELETE FROM percentiles WHERE device_id IN (SELECT device_id FROM changed);
INSERT INTO percentiles FROM percentiles_of('changed_bins');
DELETE FROM changed;
