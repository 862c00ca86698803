-- Count the windows in table replaced from the whole of silver (view all_silver), instead of from the piece.
DELETE FROM anchors;
INSERT INTO anchors SELECT device_id, boot, anchor.us AS anchor_us FROM boots SEMI JOIN replaced USING (device_id)
WHERE anchor IS NOT NULL AND readings > ok;
CREATE OR REPLACE TEMP VIEW taken_anew AS
SELECT * FROM (
    SELECT s.device_id, s.metrics, place_of(s.segment, s."position") AS place,
           taken_us(s.clock_ok, epoch_us(s.ts), epoch_us(s.received_ts), uptime_us(s.up_ms), a.anchor_us) AS event_us
    FROM (FROM all_silver SEMI JOIN replaced USING (device_id)) s
    LEFT JOIN anchors a ON NOT s.clock_ok AND s.device_id = a.device_id AND s.boot = a.boot) t
SEMI JOIN replaced r ON t.device_id = r.device_id AND t.event_us // 300000000 * 300000000 = r.window_us;
DELETE FROM fresh_windows USING replaced r
WHERE fresh_windows.device_id = r.device_id AND fresh_windows.window_us = r.window_us;
INSERT INTO fresh_windows FROM windows_of('taken_anew');
