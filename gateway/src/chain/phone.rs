//! From a published key to the address and the pin of a phone.
//!
//! A phone's tunnel answers under a name that is made of the key which the phone has published for the job, and its
//! certificate there is one that it signed itself with that key. So the chain tells both where the phone is and how to know
//! it.

use p256::{PublicKey, elliptic_curve::sec1::ToEncodedPoint as _};
use ring::digest::{SHA256, digest};

/// `SEQUENCE { SEQUENCE { ecPublicKey, prime256v1 }, BIT STRING }` up to the point, which is 65 bytes long (RFC 5480).
const P256_INFO: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// What a compressed P-256 key says about the phone's tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The first label of the host's name: the first 8 bytes of the key's SHA-256.
    pub id: String,
    /// SHA-256 of the SubjectPublicKeyInfo that the certificate there must carry, in hex.
    pub pin: String,
}

impl Tunnel {
    /// `None`: the bytes are no point of the curve.
    pub fn of(key: &[u8; 33]) -> Option<Self> {
        let point = PublicKey::from_sec1_bytes(key).ok()?.to_encoded_point(false);
        let info = [&P256_INFO[..], point.as_bytes()].concat();
        let id = digest(&SHA256, key);
        Some(Self { id: hex::encode(&id.as_ref()[..8]), pin: hex::encode(digest(&SHA256, &info)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pin_is_that_of_the_key_as_certificates_carry_it() {
        let pair = rcgen::KeyPair::generate().unwrap();
        let raw = pair.public_key_raw();
        let (x, y) = (&raw[1..33], &raw[33..]);
        let mut key = [0; 33];
        key[0] = 2 + (y[31] & 1);
        key[1..].copy_from_slice(x);
        let tunnel = Tunnel::of(&key).unwrap();
        use rcgen::PublicKeyData as _;
        assert_eq!(tunnel.pin, hex::encode(digest(&SHA256, &pair.subject_public_key_info())));
        assert_eq!(tunnel.id.len(), 16);
    }

    /// The generator of the curve, and the hash of its compressed form as `sha256sum` prints it.
    #[test]
    fn the_name_is_the_front_of_the_compressed_keys_hash() {
        let mut key = [0; 33];
        let text = "036b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296";
        hex::decode_to_slice(text, &mut key).unwrap();
        assert_eq!(Tunnel::of(&key).unwrap().id, "5baff89de7de5c1d");
        key[0] = 4;
        assert_eq!(Tunnel::of(&key), None, "not a compressed point");
    }
}
