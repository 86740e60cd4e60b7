//! The surface: what the gateway asks of whatever keeps its state.

use std::{fmt, path::Path, sync::Arc};

use serde_json::Value;

use crate::{
    audit,
    error::StoreError,
    key, open,
    record::{AuditRecord, By, KeyRecord, NewKey, NewReplica, Proof, Put, ReplicaPatch, ReplicaRecord, Speed},
    replica, schema, speed,
    writer::Writer,
};

/// The store. Clones share it; the last one to go closes it. Methods block for about the time of one sync to disk.
#[derive(Clone)]
pub struct Store {
    writer: Arc<Writer>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}

impl Store {
    /// Opens or creates the database file; `:memory:` is [`Store::in_memory`].
    ///
    /// # Errors
    /// The file can't be opened, is another program's, is damaged, or is newer than this program.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        if path.as_os_str() == ":memory:" {
            return Self::in_memory();
        }
        let (connection, file) = (open::open_file(path, &schema::STATE)?, open::OpenedFile::at(path)?);
        Ok(Self { writer: Arc::new(Writer::start(connection, Some(file))?) })
    }

    /// A store that forgets everything at the end.
    ///
    /// # Errors
    /// There is no memory or thread for it.
    pub fn in_memory() -> Result<Self, StoreError> {
        Ok(Self { writer: Arc::new(Writer::start(open::open_memory(&schema::STATE)?, None)?) })
    }

    /// Whether the database did its part in the last call.
    pub fn is_well(&self) -> bool {
        self.writer.is_well()
    }

    /// Calls in which the database did not do its part, since it was opened.
    pub fn failures(&self) -> u64 {
        self.writer.failures()
    }

    /// A number that is another one once another process has changed anything.
    ///
    /// # Errors
    /// The database failed.
    pub fn version(&self) -> Result<i64, StoreError> {
        self.writer.call(|transaction| Ok(transaction.pragma_query_value(None, "data_version", |row| row.get(0))?))
    }

    /// All replicas, by number.
    ///
    /// # Errors
    /// The database failed.
    pub fn replicas(&self) -> Result<Vec<ReplicaRecord>, StoreError> {
        self.writer.call(|transaction| replica::all(transaction))
    }

    /// One replica.
    ///
    /// # Errors
    /// `UnknownReplica`; the database failed.
    pub fn replica(&self, id: u32) -> Result<ReplicaRecord, StoreError> {
        self.writer.call(move |transaction| replica::by_id(transaction, id))
    }

    /// Adds a replica, or states the one at that address anew. Whether it is drained stays as it is.
    ///
    /// # Errors
    /// The database failed.
    pub fn put_replica(&self, by: By, new: NewReplica) -> Result<Put<ReplicaRecord>, StoreError> {
        self.writer.call(move |transaction| replica::put(transaction, &by, new))
    }

    /// [`put_replica`](Self::put_replica) for many: all of them, or none.
    ///
    /// # Errors
    /// The database failed.
    pub fn put_replicas(&self, by: By, new: Vec<NewReplica>) -> Result<Vec<Put<ReplicaRecord>>, StoreError> {
        self.writer.call(move |transaction| new.into_iter().map(|new| replica::put(transaction, &by, new)).collect())
    }

    /// Adds a replica in the place of another one, which is forgotten if it is there: both or neither.
    ///
    /// # Errors
    /// Another replica has that key, or the database failed.
    pub fn put_replica_over(&self, by: By, other: u32, new: NewReplica) -> Result<Put<ReplicaRecord>, StoreError> {
        self.writer.call(move |transaction| {
            replica::remove(transaction, &by, other)?;
            replica::put(transaction, &by, new)
        })
    }

    /// Changes what the patch names.
    ///
    /// # Errors
    /// `UnknownReplica`; the database failed.
    pub fn patch_replica(&self, by: By, id: u32, patch: ReplicaPatch) -> Result<Put<ReplicaRecord>, StoreError> {
        self.writer.call(move |transaction| replica::patch(transaction, &by, id, patch))
    }

    /// Takes a replica out of use, or back.
    ///
    /// # Errors
    /// `UnknownReplica`; the database failed.
    pub fn set_drained(&self, by: By, id: u32, drained: bool) -> Result<Put<ReplicaRecord>, StoreError> {
        self.writer.call(move |transaction| replica::set_drained(transaction, &by, id, drained))
    }

    /// Another address for the same replica, and what is stated with it: its number, its speeds and whether it is drained
    /// stay; it has to prove itself again, unless it is sure that it is the same phone (`is_same`).
    ///
    /// # Errors
    /// `UnknownReplica`; another replica has that address or key, or the database failed.
    pub fn move_replica(
        &self,
        by: By,
        id: u32,
        new: NewReplica,
        is_same: bool,
    ) -> Result<Put<ReplicaRecord>, StoreError> {
        self.writer.call(move |transaction| replica::relocate(transaction, &by, id, new, is_same))
    }

    /// Moves a replica to the address of another one, which is forgotten: both or neither.
    ///
    /// # Errors
    /// `UnknownReplica`; another replica has that key, or the database failed.
    pub fn move_replica_over(
        &self,
        by: By,
        id: u32,
        other: u32,
        new: NewReplica,
        is_same: bool,
    ) -> Result<Put<ReplicaRecord>, StoreError> {
        self.writer.call(move |transaction| {
            replica::remove(transaction, &by, other)?;
            replica::relocate(transaction, &by, id, new, is_same)
        })
    }

    /// Notes how a replica proved itself at its address; `None`: it has to do so again.
    ///
    /// # Errors
    /// `UnknownReplica`; the database failed.
    pub fn set_proven(&self, by: By, id: u32, proven: Option<Proof>) -> Result<Put<ReplicaRecord>, StoreError> {
        self.writer.call(move |transaction| replica::set_proven(transaction, &by, id, proven))
    }

    /// [`set_proven`](Self::set_proven) for many: all of them, or none.
    ///
    /// # Errors
    /// `UnknownReplica`; the database failed.
    pub fn prove_replicas(&self, by: By, proofs: Vec<(u32, Proof)>) -> Result<Vec<ReplicaRecord>, StoreError> {
        self.writer.call(move |transaction| {
            let prove = |(id, proof)| replica::set_proven(transaction, &by, id, Some(proof)).map(Put::into_inner);
            proofs.into_iter().map(prove).collect()
        })
    }

    /// Forgets a replica; its number is not given again. `None`: there was none.
    ///
    /// # Errors
    /// The database failed.
    pub fn remove_replica(&self, by: By, id: u32) -> Result<Option<ReplicaRecord>, StoreError> {
        self.writer.call(move |transaction| replica::remove(transaction, &by, id))
    }

    /// How fast replicas were when they were last measured, by replica.
    ///
    /// # Errors
    /// The database failed.
    pub fn speeds(&self) -> Result<Vec<Speed>, StoreError> {
        self.writer.call(|transaction| speed::all(transaction))
    }

    /// Keeps measurements, each in place of its replica's last one; those of replicas that are gone, or older than what
    /// is kept, are not. Not audited: nobody decided anything.
    ///
    /// # Errors
    /// The database failed; then none is kept.
    pub fn put_speeds(&self, speeds: Vec<Speed>) -> Result<(), StoreError> {
        self.writer.call(move |transaction| speeds.iter().try_for_each(|measured| speed::put(transaction, measured)))
    }

    /// All keys, revoked ones too, by number.
    ///
    /// # Errors
    /// The database failed.
    pub fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.writer.call(|transaction| key::all(transaction))
    }

    /// Adds a key.
    ///
    /// # Errors
    /// `DuplicateKey`; the database failed.
    pub fn create_key(&self, by: By, new: NewKey) -> Result<KeyRecord, StoreError> {
        self.writer.call(move |transaction| key::create(transaction, &by, new))
    }

    /// Ends a key. A key that has ended stays as it is.
    ///
    /// # Errors
    /// `UnknownKey`; the database failed.
    pub fn revoke_key(&self, by: By, id: u32) -> Result<Put<KeyRecord>, StoreError> {
        self.writer.call(move |transaction| key::revoke(transaction, &by, id))
    }

    /// The installation's pepper: the kept one, or else `fresh`, which is kept from now on.
    ///
    /// # Errors
    /// The database failed.
    pub fn pepper(&self, by: By, fresh: [u8; 32]) -> Result<[u8; 32], StoreError> {
        self.writer.call(move |transaction| key::pepper(transaction, &by, fresh))
    }

    /// Notes an act that changes nothing here, such as a reload or the end of a request.
    ///
    /// # Errors
    /// The database failed.
    pub fn note(&self, by: By, action: String, target: String, detail: Value) -> Result<(), StoreError> {
        self.writer.call(move |transaction| audit::write(transaction, &by, &action, &target, &detail))
    }

    /// The audit trail, newest first: at most `limit` (and 1,000) records, those with a smaller number than `before`.
    ///
    /// # Errors
    /// The database failed.
    pub fn audit(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>, StoreError> {
        self.writer.call(move |transaction| audit::read(transaction, before, limit))
    }
}
