//! What is true of the tables after any call.

use crate::BatchStore;

/// Each finds rows that must not be.
const NEVER: &[(&str, &str)] = &[
    (
        "a running batch's counts are those of its lines",
        "SELECT key FROM batches WHERE ended IS NULL AND in_progress IS NOT NULL AND \
         (lines, lines_completed, lines_failed) <> (SELECT count(*), count(*) FILTER (WHERE state = 2), \
         count(*) FILTER (WHERE state = 3) FROM lines WHERE batch = batches.key)",
    ),
    (
        "a terminal batch has counted all its lines",
        "SELECT key FROM batches WHERE ended IS NOT NULL AND lines <> lines_completed + lines_failed",
    ),
    (
        "a line with a result has exactly one, of its kind",
        "SELECT batch, number FROM lines JOIN batches ON key = batch WHERE ended IS NULL AND \
         ((SELECT count(*) FROM results r WHERE r.batch = lines.batch AND r.number = lines.number) <> (lines.state >= 2) \
         OR (SELECT count(*) FROM results r WHERE r.batch = lines.batch AND r.number = lines.number \
             AND r.failed = (lines.state = 3)) <> (lines.state >= 2))",
    ),
    (
        "a result has a line",
        "SELECT r.batch, r.number FROM results r JOIN batches ON key = r.batch WHERE ended IS NULL AND NOT EXISTS \
         (SELECT 1 FROM lines WHERE lines.batch = r.batch AND lines.number = r.number)",
    ),
    ("a claim has a holder", "SELECT batch FROM lines WHERE state = 1 AND holder NOT IN (SELECT id FROM holders)"),
    (
        "a job has a holder",
        "SELECT key FROM batches WHERE holder IS NOT NULL AND holder NOT IN (SELECT id FROM holders)",
    ),
    (
        "an unfinished file has a holder",
        "SELECT key FROM files WHERE holder IS NOT NULL AND holder NOT IN (SELECT id FROM holders)",
    ),
    (
        "no line of a batch in validation is claimed",
        "SELECT batch FROM lines JOIN batches ON key = batch WHERE in_progress IS NULL AND lines.state > 0",
    ),
    (
        "a batch is sealed when all lines have results, and not before",
        "SELECT key FROM batches WHERE in_progress IS NOT NULL AND ended IS NULL AND \
         (lines = lines_completed + lines_failed) <> (seal IS 'complete')",
    ),
    (
        "state, seal and times say the same",
        "SELECT key FROM batches WHERE CASE state \
         WHEN 'validating' THEN seal IS 'complete' OR seal IS 'cancelled' OR in_progress IS NOT NULL OR ended IS NOT NULL \
         WHEN 'in_progress' THEN seal IS 'complete' OR seal IS 'cancelled' OR in_progress IS NULL OR ended IS NOT NULL \
         WHEN 'finalizing' THEN seal IS NOT 'complete' OR finalizing IS NULL OR ended IS NOT NULL \
         WHEN 'cancelling' THEN seal IS NOT 'cancelled' OR cancelling IS NULL OR ended IS NOT NULL \
         WHEN 'completed' THEN seal IS NOT 'complete' OR completed IS NOT ended OR ended IS NULL \
         WHEN 'expired' THEN seal IS NOT 'expired' OR expired IS NOT ended OR ended IS NULL \
         WHEN 'cancelled' THEN seal IS NOT 'cancelled' OR cancelled IS NOT ended OR ended IS NULL \
         WHEN 'failed' THEN seal IS NOT NULL OR failed IS NOT ended OR ended IS NULL ELSE 1 END",
    ),
    (
        "times are in order",
        "SELECT key FROM batches WHERE in_progress < created OR finalizing < in_progress OR cancelling < created \
         OR cancelling < in_progress OR ended < created OR ended < in_progress OR ended < finalizing OR ended < cancelling",
    ),
    (
        "the content of a file is whole",
        "SELECT key FROM files WHERE (deleted = 0 OR key IN (SELECT input FROM batches WHERE ended IS NULL)) AND \
         bytes <> (SELECT coalesce(sum(length(bytes)), 0) FROM pieces WHERE file = files.key)",
    ),
    (
        "pieces lie behind each other",
        "SELECT p.file FROM pieces p JOIN files ON key = p.file WHERE deleted = 0 AND p.start > 0 AND \
         (SELECT length(bytes) FROM pieces b WHERE b.file = p.file AND b.start = p.start - 65536) IS NOT 65536",
    ),
    ("content belongs to a file", "SELECT file FROM pieces WHERE file NOT IN (SELECT key FROM files)"),
    (
        "a batch's files are its tenant's",
        "SELECT b.key FROM batches b JOIN files f ON f.id IN (b.output_file, b.error_file, b.input_file) \
         WHERE f.tenant <> b.tenant",
    ),
    (
        "rows belong to a batch",
        "SELECT batch FROM (SELECT batch FROM lines UNION SELECT batch FROM results) \
      WHERE batch NOT IN (SELECT key FROM batches)",
    ),
];

/// Fails if one is broken.
pub(super) fn hold(store: &BatchStore) {
    let broken = store.inspect(|connection| {
        let mut broken = Vec::new();
        for (name, never) in NEVER {
            if connection.prepare_cached(never)?.exists([])? {
                broken.push(*name);
            }
        }
        let sound: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        if sound != "ok" {
            broken.push("the database is sound");
        }
        Ok(broken)
    });
    assert_eq!(broken.unwrap(), Vec::<&str>::new());
}
