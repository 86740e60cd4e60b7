//! Accounts of the chain and how people write them (SS58).

use std::{fmt, str::FromStr};

use blake2::{Blake2b512, Digest as _};

/// The number in front of an address. 42: what the Acurast chains use, and every chain without one of its own.
const NETWORK: u8 = 42;
/// Bytes of the checksum behind an account of 32 bytes.
const CHECKSUM: usize = 2;
/// Longest text worth reading: an account with a number of two bytes and its checksum has 50 letters.
const LONGEST: usize = 60;

/// An account: a deployer or a phone. Shown as an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(pub [u8; 32]);

/// Why a text is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Other letters than base 58 has, or too many.
    #[error("not an address: it has letters that no address has, or too many")]
    Letters,
    /// Not 32 bytes.
    #[error("not the address of an account: it has the wrong length")]
    Length,
    /// Mistyped.
    #[error("not an address: the checksum is wrong (a letter is mistyped or missing)")]
    Checksum,
}

fn checksum(body: &[u8]) -> [u8; CHECKSUM] {
    let hash = Blake2b512::new().chain_update(b"SS58PRE").chain_update(body).finalize();
    [hash[0], hash[1]]
}

impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::with_capacity(1 + 32 + CHECKSUM);
        bytes.push(NETWORK);
        bytes.extend_from_slice(&self.0);
        let checksum = checksum(&bytes);
        bytes.extend_from_slice(&checksum);
        f.write_str(&bs58::encode(bytes).into_string())
    }
}

impl fmt::Debug for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for AccountId {
    type Err = AddressError;

    /// An address of any network: the account is the same.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.len() > LONGEST {
            return Err(AddressError::Letters);
        }
        let bytes = bs58::decode(text).into_vec().map_err(|_| AddressError::Letters)?;
        // Numbers from 64 on take two bytes.
        let front = match bytes.first() {
            Some(0..64) => 1,
            Some(64..128) => 2,
            _ => return Err(AddressError::Length),
        };
        if bytes.len() != front + 32 + CHECKSUM {
            return Err(AddressError::Length);
        }
        let (body, sum) = bytes.split_at(front + 32);
        if checksum(body) != sum {
            return Err(AddressError::Checksum);
        }
        let mut account = [0; 32];
        account.copy_from_slice(&body[front..]);
        Ok(Self(account))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The well-known development account, as every tool of this kind of chain prints it.
    const ALICE: &str = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
    const ALICE_KEY: &str = "d43593c715fdd31c61141abd04a99fd6822c8558854ccde39a5684e7a56da27d";

    #[test]
    fn a_known_address_is_the_known_account_and_is_written_back() {
        let account: AccountId = ALICE.parse().unwrap();
        assert_eq!(hex::encode(account.0), ALICE_KEY);
        assert_eq!(account.to_string(), ALICE);
        // The same account as another network writes it (number 0).
        let polkadot: AccountId = "15oF4uVJwmo4TdGW7VfQxNLavjCXviqxT9S1MgbjMNHr6Sp5".parse().unwrap();
        assert_eq!(polkadot, account);
    }

    #[test]
    fn a_mistyped_address_is_refused() {
        let mistyped = ALICE.replace("GKutQY", "GKutQZ");
        assert_eq!(mistyped.parse::<AccountId>(), Err(AddressError::Checksum));
        assert_eq!(ALICE[..40].parse::<AccountId>(), Err(AddressError::Length));
        for odd in ["", "0OIl", &"5".repeat(5_000), "é"] {
            assert!(odd.parse::<AccountId>().is_err(), "{odd}");
        }
    }
}
