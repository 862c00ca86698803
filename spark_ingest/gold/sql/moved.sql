-- The windows that changed anchors move readings out of or into (table moved; view all_silver), counted anew.
CREATE OR REPLACE TEMP TABLE replaced AS
SELECT DISTINCT device_id, unnest([then_us, now_us]) // 300000000 * 300000000 AS window_us FROM (
    SELECT s.device_id,
           taken_us(FALSE, NULL, epoch_us(s.received_ts), uptime_us(s.up_ms), m.then_us) AS then_us,
           taken_us(FALSE, NULL, epoch_us(s.received_ts), uptime_us(s.up_ms), m.now_us) AS now_us
    FROM all_silver s JOIN moved m USING (device_id, boot) WHERE NOT s.clock_ok);
