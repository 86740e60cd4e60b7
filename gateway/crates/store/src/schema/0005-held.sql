ALTER TABLE replicas ADD COLUMN held TEXT NOT NULL DEFAULT '[]' CHECK (json_type(held) = 'array');
