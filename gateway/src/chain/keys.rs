//! Where the chain keeps what is read here: storage keys, built and taken apart.
//!
//! A key is the hashes of the pallet's and the item's name, then each of the item's own keys behind its hash
//! (`blake2_128_concat` for all that is read here). That the hash in front of a key is the right one is checked: where it is
//! not, the item has another form than the one known.

use std::hash::Hasher as _;

use blake2::{Blake2b, Digest as _, digest::consts::U16};
use twox_hash::XxHash64;

use super::{
    address::AccountId,
    job::{JobId, Origin},
    scale::{Misfit, Reader, Why},
};

/// The number of the layout of a pallet's storage, which every migration raises.
const VERSION: &str = ":__STORAGE_VERSION__:";
/// The pallet of job registrations.
const ACURAST: &str = "Acurast";
/// The pallet of matches and assignments.
const MARKETPLACE: &str = "AcurastMarketplace";
/// Bytes of a hash in front of a key.
const HASH: usize = 16;

/// A storage key.
pub type Key = Vec<u8>;

/// The hash of names: two hashes of 64 bits, seeded 0 and 1.
fn twox128(text: &str) -> [u8; 16] {
    let mut both = [0; 16];
    for (seed, half) in both.chunks_exact_mut(8).enumerate() {
        let mut hasher = XxHash64::with_seed(seed as u64);
        hasher.write(text.as_bytes());
        half.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    both
}

fn blake2_128(bytes: &[u8]) -> [u8; HASH] {
    Blake2b::<U16>::digest(bytes).into()
}

fn item(pallet: &str, name: &str) -> Key {
    [twox128(pallet), twox128(name)].concat()
}

fn concat(key: &mut Key, part: &[u8]) {
    key.extend_from_slice(&blake2_128(part));
    key.extend_from_slice(part);
}

/// `AcurastMarketplace.AssignedProcessors(job)`: the front of the keys of its phones.
pub fn assigned_processors(job: &JobId) -> Key {
    let mut key = item(MARKETPLACE, "AssignedProcessors");
    concat(&mut key, &job.encode());
    key
}

/// `AcurastMarketplace.StoredMatches(processor, job)`.
pub fn stored_match(processor: &AccountId, job: &JobId) -> Key {
    let mut key = item(MARKETPLACE, "StoredMatches");
    concat(&mut key, &processor.0);
    concat(&mut key, &job.encode());
    key
}

/// `Acurast.StoredJobRegistration(origin)`: the front of the keys of its jobs.
pub fn registrations(origin: &Origin) -> Key {
    let mut key = item(ACURAST, "StoredJobRegistration");
    concat(&mut key, &origin.encode());
    key
}

/// `Acurast.StoredJobRegistration(origin, number)`.
pub fn registration(job: &JobId) -> Key {
    let mut key = registrations(&job.origin);
    concat(&mut key, &job.number.to_le_bytes());
    key
}

/// The layout's number of the two pallets: `AcurastMarketplace`, then `Acurast`.
pub fn versions() -> [Key; 2] {
    [MARKETPLACE, ACURAST].map(|pallet| item(pallet, VERSION))
}

/// `Timestamp.Now`: when the block was made.
pub fn now() -> Key {
    item("Timestamp", "Now")
}

/// The phone that a key of `AssignedProcessors` names. `front` is what the key was asked for with.
///
/// # Errors
/// The key has another form.
pub fn processor_of(front: &[u8], key: &[u8]) -> Result<AccountId, Misfit> {
    last_part(front, key, "key's processor").map(AccountId)
}

/// The job's number that a key of `StoredJobRegistration` names.
///
/// # Errors
/// The key has another form.
pub fn number_of(front: &[u8], key: &[u8]) -> Result<u128, Misfit> {
    last_part(front, key, "key's job number").map(u128::from_le_bytes)
}

fn last_part<const N: usize>(front: &[u8], key: &[u8], field: &'static str) -> Result<[u8; N], Misfit> {
    let Some(rest) = key.strip_prefix(front) else { return Err(Misfit { field, at: 0, why: Why::Ends }) };
    let mut reader = Reader::new(rest);
    let place = |mut misfit: Misfit| {
        misfit.at += front.len();
        misfit
    };
    let hash: [u8; HASH] = reader.array(field).map_err(place)?;
    let part: [u8; N] = reader.array(field).map_err(place)?;
    reader.end(field).map_err(place)?;
    if hash != blake2_128(&part) {
        return Err(Misfit { field, at: front.len(), why: Why::Variant(hash[0]) });
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What every tool of this kind of chain prints for these items.
    #[test]
    fn keys_of_well_known_items_are_the_known_ones() {
        assert_eq!(
            hex::encode(item("System", "Account")),
            "26aa394eea5630e07c48ae0c9558cef7b99d880ec681799c0cf30e8886371da9"
        );
        assert_eq!(hex::encode(now()), "f0c365c3cf59d671eb72da0e7a4113c49f1f0515f462cdcf84e0f1d6045dfcbb");
        assert_eq!(hex::encode(twox128(VERSION)), "4e7b9012096b41c4eb3aaf947f6ea429");
        // System.Account of the development account: its key behind its hash.
        let alice: AccountId = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY".parse().unwrap();
        let mut account = Key::new();
        concat(&mut account, &alice.0);
        assert_eq!(hex::encode(&account[..16]), "de1e86a9a8c739864cf3cc5ec2bea59f");
        assert_eq!(account[16..], alice.0);
    }

    #[test]
    fn a_key_gives_back_what_it_was_made_of_and_nothing_else_does() {
        let job: JobId = "Acurast:5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY:7".parse().unwrap();
        let front = assigned_processors(&job);
        let phone = AccountId([9; 32]);
        let mut key = front.clone();
        concat(&mut key, &phone.0);
        assert_eq!(processor_of(&front, &key), Ok(phone));
        let front_of_jobs = registrations(&job.origin);
        assert_eq!(number_of(&front_of_jobs, &registration(&job)), Ok(7));
        // Longer, shorter, of another item, and hashed in another way.
        let longer = [key.clone(), vec![0]].concat();
        assert_eq!(processor_of(&front, &longer).unwrap_err().why, Why::Left(1));
        assert_eq!(processor_of(&front, &key[..key.len() - 1]).unwrap_err().why, Why::Ends);
        assert!(processor_of(&front_of_jobs, &key).is_err());
        key[front.len()] ^= 1;
        let misfit = processor_of(&front, &key).unwrap_err();
        assert_eq!((misfit.at, misfit.field), (front.len(), "key's processor"));
    }
}
