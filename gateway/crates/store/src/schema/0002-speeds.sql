ALTER TABLE replicas ADD COLUMN prefill_rate REAL CHECK (prefill_rate > 0);
ALTER TABLE replicas ADD COLUMN decode_rate REAL CHECK (decode_rate > 0);

CREATE TABLE speeds (
    replica INTEGER PRIMARY KEY,
    models TEXT NOT NULL CHECK (json_type(models) = 'array'),
    prefill_rate REAL CHECK (prefill_rate > 0),
    decode_rate REAL CHECK (decode_rate > 0),
    measured INTEGER NOT NULL
) STRICT;
