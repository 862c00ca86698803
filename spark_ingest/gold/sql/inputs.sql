-- Tables that are filled anew at each start or update, and are not saved.
CREATE TEMP TABLE rules (
    name VARCHAR, kind VARCHAR, groups VARCHAR[], sites VARCHAR[], metric VARCHAR, above DOUBLE, below DOUBLE,
    change DOUBLE, "by" DOUBLE, empty DOUBLE, share DOUBLE, after_us BIGINT, within_us BIGINT, boots BIGINT,
    readings BIGINT, messages BIGINT, expected VARCHAR[]
);
CREATE TEMP TABLE memberships (device_id VARCHAR, device_group VARCHAR, site VARCHAR);
-- The alerts of this update, with those that the journal remembers.
CREATE TEMP TABLE found (
    device_id VARCHAR, name VARCHAR, kind VARCHAR, since BIGINT, until BIGINT, "value" DOUBLE, text VARCHAR
);
CREATE TEMP TABLE noted AS FROM found;
-- Windows of the last hours, and sums of those of the last week.
CREATE TEMP TABLE recent (device_id VARCHAR, metric VARCHAR, start BIGINT, "last" BIGINT, mean DOUBLE);
CREATE TEMP TABLE week_hours (device_id VARCHAR, metric VARCHAR, hour BIGINT, n BIGINT, total DOUBLE);
CREATE TEMP TABLE week_line (
    device_id VARCHAR, metric VARCHAR, n BIGINT, slope DOUBLE, mean DOUBLE, middle DOUBLE, earliest DOUBLE, latest DOUBLE
);
-- Devices whose readings come, live, a constant whole number of hours after they were taken: their clocks are wrong.
CREATE TEMP TABLE clocks (device_id VARCHAR, behind_us BIGINT);
-- Boots that may lack a reading.
CREATE TEMP TABLE holed (device_id VARCHAR, boot VARCHAR);
CREATE TEMP VIEW rate_rules AS FROM rules WHERE kind = 'rate';
