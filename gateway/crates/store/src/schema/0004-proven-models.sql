ALTER TABLE replicas ADD COLUMN proven_models TEXT CHECK (json_type(proven_models) = 'array');
