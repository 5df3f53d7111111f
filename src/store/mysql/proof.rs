//! How we show who we are: the proofs that plugins of MySQL and MariaDB ask for.
//!
//! The hazard: a server that is not ours may ask for the password itself. It gets it only inside TLS, over a unix
//! socket, or sealed with a public key that the user named or allowed the server to send: as with MySQL's own clients.

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest as _, Sha256};

pub const NATIVE: &str = "mysql_native_password";
pub const CACHING: &str = "caching_sha2_password";

/// The bytes of an RSA key: 1024 to 8192 bits.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 128..=1024;
/// The length of SHA-1.
const HASH: usize = 20;

/// The first proof of `plugin`. None if it is unknown.
pub fn proof(plugin: &str, password: &str, scramble: &[u8]) -> Option<Vec<u8>> {
    match plugin {
        NATIVE | CACHING if password.is_empty() => Some(Vec::new()),
        NATIVE => Some(native(password, scramble)),
        CACHING => Some(caching(password, scramble)),
        _ => None,
    }
}

fn sha1(bytes: &[u8]) -> Vec<u8> {
    digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref().to_vec()
}

fn xor(one: &[u8], other: &[u8]) -> Vec<u8> {
    one.iter().zip(other).map(|(one, other)| one ^ other).collect()
}

fn native(password: &str, scramble: &[u8]) -> Vec<u8> {
    let once = sha1(password.as_bytes());
    xor(&once, &sha1(&[scramble, &sha1(&once)].concat()))
}

fn caching(password: &str, scramble: &[u8]) -> Vec<u8> {
    let once = Sha256::digest(password.as_bytes());
    xor(&once, &Sha256::digest([&Sha256::digest(once)[..], scramble].concat()))
}

/// The password for a server that has to see it, sealed with its key (PEM): RSA with OAEP (RFC 8017, section 7.1.1).
/// None if the key makes no sense or is too short, or there is no random.
pub fn sealed(password: &str, scramble: &[u8], key: &[u8]) -> Option<Vec<u8>> {
    let key = SubjectPublicKeyInfoDer::from_pem_slice(key).ok()?;
    let (modulus, exponent) = rsa_key(&key)?;
    let plain: Vec<u8> =
        password.bytes().chain([0]).zip(scramble.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
    let mut seed = [0; HASH];
    getrandom::fill(&mut seed).ok()?;
    let padded = padded(&plain, seed, modulus.len())?;
    Some(power(&padded, &exponent, &modulus))
}

fn padded(plain: &[u8], seed: [u8; HASH], length: usize) -> Option<Vec<u8>> {
    let zeros = length.checked_sub(plain.len() + 2 * HASH + 2)?;
    let data = [&sha1(b"")[..], &vec![0; zeros], &[1], plain].concat();
    let data = xor(&data, &mask(&seed, data.len()));
    let seed = xor(&seed, &mask(&data, HASH));
    Some([&[0][..], &seed, &data].concat())
}

/// MGF1 of RFC 8017, with SHA-1.
fn mask(seed: &[u8], length: usize) -> Vec<u8> {
    let blocks = (0_u32..).flat_map(|count| sha1(&[seed, &count.to_be_bytes()].concat()));
    blocks.take(length).collect()
}

/// The modulus and the exponent of a key (RFC 3279, section 2.3.1), without zeros before them.
fn rsa_key(der: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    const SEQUENCE: u8 = 0x30;
    const INTEGER: u8 = 2;
    const BIT_STRING: u8 = 3;
    const RSA: &[u8] = &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
    let (whole, _) = element(der, SEQUENCE)?;
    let (algorithm, rest) = element(whole, SEQUENCE)?;
    let (bits, _) = element(rest, BIT_STRING).filter(|_| algorithm.starts_with(RSA))?;
    let (key, _) = element(bits.strip_prefix(&[0])?, SEQUENCE)?;
    let (modulus, rest) = element(key, INTEGER)?;
    let (exponent, _) = element(rest, INTEGER)?;
    let bare = |number: &[u8]| number.iter().copied().skip_while(|&byte| byte == 0).collect::<Vec<_>>();
    let (modulus, exponent) = (bare(modulus), bare(exponent));
    let is_odd = modulus.last().is_some_and(|last| last % 2 == 1);
    (is_odd && KEY_BYTES.contains(&modulus.len()) && (1..=4).contains(&exponent.len())).then_some((modulus, exponent))
}

/// The contents of the DER element that comes first, and what comes after it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let [first, length, rest @ ..] = der else { return None };
    let (length, rest) = match length {
        0..=127 => (usize::from(*length), rest),
        0x81 | 0x82 => {
            let (length, rest) = rest.split_at_checked(usize::from(length & 3))?;
            (length.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte)), rest)
        }
        _ => return None,
    };
    (*first == tag).then(|| rest.split_at_checked(length))?
}

/// `base` to the power of `exponent`, modulo `modulus`: numbers of many bytes, the highest first. Slow and plain, for
/// one number at a time. Its time depends on the number; an attacker who can measure it in here has the password
/// anyway.
fn power(base: &[u8], exponent: &[u8], modulus: &[u8]) -> Vec<u8> {
    let (base, modulus) = (digits(base, modulus.len()), digits(modulus, modulus.len()));
    let mut result = digits(&[1], modulus.len() * 4);
    for bit in exponent.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)) {
        result = product(&result, &result, &modulus);
        if bit == 1 {
            result = product(&result, &base, &modulus);
        }
    }
    let bytes: Vec<u8> = result.iter().rev().flat_map(|digit| digit.to_be_bytes()).collect();
    bytes[bytes.len() - modulus_bytes(&modulus)..].to_vec()
}

fn modulus_bytes(modulus: &[u32]) -> usize {
    let top = modulus.last().map_or(0, |digit| digit.leading_zeros() as usize / 8);
    modulus.len() * 4 - top
}

/// The digits of a number in bytes, the lowest first, in room for `length` bytes.
fn digits(bytes: &[u8], length: usize) -> Vec<u32> {
    let mut digits = vec![0; length.div_ceil(4)];
    for (index, byte) in bytes.iter().rev().enumerate().take(length) {
        digits[index / 4] |= u32::from(*byte) << (index % 4 * 8);
    }
    digits
}

/// `one * other`, modulo `modulus`, for numbers below it: doubles and adds.
fn product(one: &[u32], other: &[u32], modulus: &[u32]) -> Vec<u32> {
    let mut sum = vec![0; modulus.len()];
    for bit in other.iter().rev().flat_map(|digit| (0..32).rev().map(move |bit| digit >> bit & 1)) {
        let twice = sum.clone();
        add(&mut sum, &twice, modulus);
        if bit == 1 {
            add(&mut sum, one, modulus);
        }
    }
    sum
}

/// Adds to `sum`, modulo `modulus`.
fn add(sum: &mut [u32], other: &[u32], modulus: &[u32]) {
    let mut carry = false;
    for (digit, other) in sum.iter_mut().zip(other) {
        let (once, first) = digit.overflowing_add(*other);
        let (twice, second) = once.overflowing_add(u32::from(carry));
        (*digit, carry) = (twice, first || second);
    }
    if carry || sum.iter().rev().ge(modulus.iter().rev()) {
        let mut borrow = false;
        for (digit, modulus) in sum.iter_mut().zip(modulus) {
            let (once, first) = digit.overflowing_sub(*modulus);
            let (twice, second) = once.overflowing_sub(u32::from(borrow));
            (*digit, borrow) = (twice, first || second);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate};
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    /// What openssl prints to `words`, with `input` on its standard input.
    fn openssl(words: &[&str], input: &[u8]) -> Vec<u8> {
        let mut command = Command::new("openssl");
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("openssl is there");
        child.stdin.take().expect("a pipe").write_all(input).expect("openssl listens");
        let output = child.wait_with_output().expect("openssl ends");
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }

    #[test]
    fn what_is_sealed_is_opened_with_the_private_key() {
        let scratch = tempfile::TempDir::new().unwrap();
        let private = scratch.path().join("key.pem");
        let private = private.to_str().unwrap();
        for bits in ["1024", "2048", "2056"] {
            openssl(&["genrsa", "-out", private, bits], b"");
            let public = openssl(&["rsa", "-in", private, "-pubout"], b"");
            let scramble = b"abcdefghijklmnopqrst";
            let sealed = sealed("hunter2 and a password that is longer", scramble, &public).unwrap();
            let opened =
                openssl(&["pkeyutl", "-decrypt", "-inkey", private, "-pkeyopt", "rsa_padding_mode:oaep"], &sealed);
            let plain: Vec<u8> = opened.iter().zip(scramble.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
            assert_eq!(plain, b"hunter2 and a password that is longer\0", "{bits}");
        }
    }

    #[test]
    fn proofs_are_those_of_the_servers() {
        // mysql.user has SHA1(SHA1(password)); the server checks that this opens the proof.
        let scramble = b"abcdefghijklmnopqrst";
        let proof = proof(NATIVE, "hunter2", scramble).unwrap();
        let stored = sha1(&sha1(b"hunter2"));
        let once = xor(&proof, &sha1(&[&scramble[..], &stored].concat()));
        assert_eq!(sha1(&once), stored);
        let proof = super::proof(CACHING, "hunter2", scramble).unwrap();
        let stored = Sha256::digest(Sha256::digest(b"hunter2"));
        let once = xor(&proof, &Sha256::digest([&stored[..], scramble].concat()));
        assert_eq!(Sha256::digest(once), stored);
        assert_eq!(super::proof(CACHING, "", scramble), Some(Vec::new()));
        assert_eq!(super::proof("dialog", "hunter2", scramble), None);
    }

    #[test]
    fn a_hundred_thousand_keys_of_any_bytes_are_used_or_refused() {
        let scratch = tempfile::TempDir::new().unwrap();
        let private = scratch.path().join("key.pem");
        openssl(&["genrsa", "-out", private.to_str().unwrap(), "1024"], b"");
        let der = openssl(&["rsa", "-in", private.to_str().unwrap(), "-pubout", "-outform", "DER"], b"");
        fuzz::run_a_tenth("public key", |source, input| {
            let bytes = source.bend(&[&der]);
            input.show(|| format!("{bytes:?}"));
            match rsa_key(&bytes) {
                Some((modulus, _)) => {
                    assert!(KEY_BYTES.contains(&modulus.len()));
                    Fate::Accepted
                }
                None => Fate::Refused,
            }
        });
    }
}
