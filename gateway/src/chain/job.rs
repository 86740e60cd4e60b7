//! A job of the chain: who registered it, and its number there.

use std::{fmt, str::FromStr};

use super::address::{AccountId, AddressError};

/// The networks whose accounts the chain knows as 32 bytes, with their variant and the word that stands for them.
const NETWORKS: [(u8, &str); 4] = [(0, "Acurast"), (3, "AlephZero"), (4, "Vara"), (7, "AcurastCanary")];

/// Who registered a job: an account, on the network that it came from. Jobs that came over a bridge from a network with
/// other accounts (Tezos, Ethereum, Solana) can't be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    network: u8,
    /// The account.
    pub account: AccountId,
}

impl Origin {
    /// An account of the chain itself.
    pub fn acurast(account: AccountId) -> Self {
        Self { network: 0, account }
    }

    /// As it is in keys.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.network];
        bytes.extend_from_slice(&self.account.0);
        bytes
    }

    fn word(self) -> &'static str {
        NETWORKS.iter().find(|(network, _)| *network == self.network).map_or("?", |(_, word)| word)
    }
}

/// A job: `Acurast:ADDRESS:NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    /// Who registered it.
    pub origin: Origin,
    /// Its number on the network that it came from.
    pub number: u128,
}

/// Why a text names no job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// Not three parts.
    #[error("not a job: it is written NETWORK:ADDRESS:NUMBER, such as \"Acurast:5Grw…:4711\"")]
    Form,
    /// Not a network whose accounts are known.
    #[error("not a known network: \"Acurast\", \"AcurastCanary\", \"AlephZero\" or \"Vara\"")]
    Network,
    /// Not an address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Not a number.
    #[error("not a job's number")]
    Number,
}

impl JobId {
    /// As it is in keys.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.origin.encode();
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.origin.word(), self.origin.account, self.number)
    }
}

impl FromStr for JobId {
    type Err = JobError;

    fn from_str(text: &str) -> Result<Self, JobError> {
        let mut parts = text.split(':');
        let (Some(word), Some(address), Some(number), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(JobError::Form);
        };
        let known = NETWORKS.iter().find(|(_, known)| known.eq_ignore_ascii_case(word));
        let network = known.ok_or(JobError::Network)?.0;
        let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.parse().ok().filter(|_| digits).ok_or(JobError::Number)?;
        Ok(Self { origin: Origin { network, account: address.parse()? }, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "Acurast:5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY:4711";

    #[test]
    fn a_job_reads_back_from_its_text_and_has_the_bytes_of_a_key() {
        let job: JobId = JOB.parse().unwrap();
        assert_eq!(job.to_string(), JOB);
        let bytes = job.encode();
        assert_eq!(bytes.len(), 1 + 32 + 16);
        assert_eq!(bytes[33..35], [0x67, 0x12], "the number's lowest byte is the first");
        let canary: JobId = JOB.replace("Acurast", "acurastcanary").parse().unwrap();
        assert_eq!(canary.encode()[0], 7);
    }

    #[test]
    fn what_is_no_job_says_what_is_wrong() {
        let refused = |text: &str| text.parse::<JobId>().unwrap_err();
        assert_eq!(refused("4711"), JobError::Form);
        assert_eq!(refused(&JOB.replace("Acurast", "Tezos")), JobError::Network);
        assert_eq!(refused("Acurast:5Grw:4711"), JobError::Address(AddressError::Length));
        assert_eq!(refused(&format!("{JOB}:1")), JobError::Form);
        for number in ["", "-1", "+1", "1.5", "999999999999999999999999999999999999999999"] {
            assert_eq!(refused(&JOB.replace("4711", number)), JobError::Number, "{number}");
        }
    }
}
