"""Every query of the event log."""

# A conflict would use up a number of AUTOINCREMENT, and the numbers say how many events there are.
APPEND = (
    "INSERT INTO event(id, type, appended_s, body, checksum) SELECT ?1, ?2, ?3, ?4, ?5"
    " WHERE NOT EXISTS (SELECT 1 FROM event WHERE id = ?1)"
)
SEQ_OF_ID = "SELECT seq FROM event WHERE id = ?"
LAST_STAMP = "SELECT appended_s FROM event ORDER BY seq DESC LIMIT 1"

READ = "SELECT seq, id, type, body, appended_s, checksum FROM event WHERE seq > ? ORDER BY seq LIMIT ?"
READ_TYPES = (
    "SELECT seq, id, type, body, appended_s, checksum FROM event WHERE seq > :after"
    " AND type IN (SELECT value FROM json_each(:types)) ORDER BY seq LIMIT :limit"
)

FIRST_SEQ = "SELECT min(seq) FROM event"
# The counter behind AUTOINCREMENT still knows the last number when the log is empty.
LAST_SEQ = "SELECT seq FROM sqlite_sequence WHERE name = 'event'"
STAMP_FROM = "SELECT seq, appended_s FROM event WHERE seq >= ? ORDER BY seq LIMIT 1"
TRIM = "DELETE FROM event WHERE seq <= ?"

POSITIONS = "SELECT consumer, floor, done_above FROM cursor WHERE instance = ?"
POSITION = "SELECT floor, done_above, moved_s FROM cursor WHERE instance = ? AND consumer = ?"
STORE_POSITION = (
    "INSERT INTO cursor(instance, consumer, floor, done_above, moved_s) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT(instance, consumer) DO UPDATE SET"
    " floor = excluded.floor, done_above = excluded.done_above, moved_s = excluded.moved_s"
)
TOUCH_POSITION = "UPDATE cursor SET moved_s = ? WHERE instance = ? AND consumer = ?"
# Who has seen least of those that were there lately, or that have missed nothing so far.
LIVE_FLOOR = (
    "SELECT floor, consumer, instance FROM cursor WHERE moved_s >= :since_s OR floor >= :missed_nothing"
    " ORDER BY floor, instance, consumer LIMIT 1"
)
FORGET_POSITION = "DELETE FROM cursor WHERE instance = ? AND consumer = ?"
FORGET_OLD_POSITIONS = "DELETE FROM cursor WHERE moved_s < ?"
