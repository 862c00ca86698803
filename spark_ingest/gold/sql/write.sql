-- Settle what follows from the changes since the gold tables were written: gaps, percentiles, and the days to write.

CREATE OR REPLACE TEMP TABLE settled AS SELECT DISTINCT device_id, boot FROM changed;
DELETE FROM changed;
INSERT INTO changed FROM settled;
CREATE OR REPLACE TEMP TABLE new_gaps AS FROM fresh_gaps;
CREATE OR REPLACE TEMP TABLE old_gaps AS FROM gaps SEMI JOIN changed USING (device_id, boot);
INSERT INTO pending SELECT DISTINCT 'gaps', day
FROM ((FROM new_gaps EXCEPT SELECT * FROM old_gaps) UNION ALL (FROM old_gaps EXCEPT SELECT * FROM new_gaps));
DELETE FROM gaps USING changed c WHERE gaps.device_id = c.device_id AND gaps.boot = c.boot;
INSERT INTO gaps BY NAME FROM new_gaps;
INSERT INTO pending SELECT DISTINCT 'boots', unnest([heard_us // 86400000000, written_day])
FROM numbered SEMI JOIN changed USING (device_id, boot);
UPDATE boots SET written_day = coalesce(boots.last_us, boots.born.us) // 86400000000 FROM changed c
WHERE boots.device_id = c.device_id AND boots.boot = c.boot;
DELETE FROM percentiles WHERE device_id IN (SELECT device_id FROM changed);
CREATE OR REPLACE TEMP TABLE counted AS
SELECT device_id AS key, metric, bin, n FROM bins WHERE device_id IN (SELECT device_id FROM changed);
INSERT INTO percentiles FROM percentiles_of('counted');
DELETE FROM changed;
CREATE OR REPLACE TEMP TABLE settled AS SELECT DISTINCT name, day FROM pending WHERE day IS NOT NULL OR name <> 'boots';
DELETE FROM pending;
INSERT INTO pending FROM settled;
