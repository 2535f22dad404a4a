//! `inet`, `cidr`, `macaddr`, `macaddr8`: `network_in`, `macaddr_in` and
//! `macaddr8_in` of `src/backend/utils/adt/{network,mac,mac8}.c`.
//!
//! This module reads complete dotted quads and IPv6 addresses with or without a netmask, and the
//! usual spellings of hardware addresses with two digits for each byte. Abbreviated networks and
//! all other forms are left to the server.

use super::text::hex_pair;
use crate::error::Refusal;

/// An address with the length of its netmask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: [u8; 16],
    /// 4 or 16
    len: usize,
    /// bits of the network part
    pub netmask: u8,
}

impl Network {
    /// The address's 4 or 16 bytes.
    pub fn address(&self) -> &[u8] {
        &self.address[..self.len]
    }

    /// Whether all bits to the right of the netmask are zero.
    fn is_network(&self) -> bool {
        let mask = usize::from(self.netmask);
        self.address().iter().enumerate().all(|(at, byte)| {
            let kept = mask.saturating_sub(at * 8).min(8);
            byte & (0xffu16 >> kept) as u8 == 0
        })
    }
}

/// `inet`.
pub fn inet(text: &[u8]) -> Result<Network, Refusal> {
    let (address, mask) = match text.iter().position(|c| *c == b'/') {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let mut network = if address.contains(&b':') { v6(address)? } else { v4(address)? };
    let bits = network.netmask;
    if let Some(mask) = mask {
        network.netmask = match mask {
            [b'0'] => 0,
            [b'1'..=b'9', rest @ ..] if rest.len() < 3 && rest.iter().all(u8::is_ascii_digit) => {
                let value = mask.iter().fold(0u32, |v, c| v * 10 + u32::from(c - b'0'));
                u8::try_from(value).map_err(|_| Refusal::Ask)?
            }
            _ => return Err(Refusal::Ask),
        };
        if network.netmask > bits {
            return Err(Refusal::Syntax);
        }
    }
    Ok(network)
}

/// `cidr`: no bits to the right of the netmask.
pub fn cidr(text: &[u8]) -> Result<Network, Refusal> {
    let network = inet(text)?;
    if network.is_network() {
        Ok(network)
    } else {
        Err(Refusal::Syntax)
    }
}

/// Reads four numbers without leading zeros.
fn v4(text: &[u8]) -> Result<Network, Refusal> {
    let mut address = [0; 16];
    let mut parts = text.split(|c| *c == b'.');
    for byte in address.iter_mut().take(4) {
        *byte = match parts.next() {
            Some([b'0']) => 0,
            Some(part @ [b'1'..=b'9', ..])
                if part.len() <= 3 && part.iter().all(u8::is_ascii_digit) =>
            {
                let value = part.iter().fold(0u16, |v, c| v * 10 + u16::from(c - b'0'));
                u8::try_from(value).map_err(|_| Refusal::Ask)?
            }
            _ => return Err(Refusal::Ask),
        };
    }
    if parts.next().is_some() {
        return Err(Refusal::Ask);
    }
    Ok(Network { address, len: 4, netmask: 32 })
}

fn v6(text: &[u8]) -> Result<Network, Refusal> {
    let text = std::str::from_utf8(text).map_err(|_| Refusal::Ask)?;
    let address: core::net::Ipv6Addr = text.parse().map_err(|_| Refusal::Ask)?;
    Ok(Network { address: address.octets(), len: 16, netmask: 128 })
}

/// The bytes of a hardware address. It has two digits for each byte, and the same separator between
/// all groups of `group` bytes.
fn hardware<const N: usize>(text: &[u8], separator: u8, group: usize) -> Option<[u8; N]> {
    let mut rest = text;
    let mut value = [0; N];
    for (at, byte) in value.iter_mut().enumerate() {
        if at > 0 && at % group == 0 {
            rest = rest.strip_prefix(&[separator])?;
        }
        let [a, b, after @ ..] = rest else {
            return None;
        };
        *byte = hex_pair(*a, *b)?;
        rest = after;
    }
    rest.is_empty().then_some(value)
}

/// `macaddr`.
pub fn macaddr(text: &[u8]) -> Result<[u8; 6], Refusal> {
    match text.len() {
        17 => hardware(text, b':', 1).or_else(|| hardware(text, b'-', 1)),
        14 => hardware(text, b'.', 2).or_else(|| hardware(text, b'-', 2)),
        13 => hardware(text, b':', 3).or_else(|| hardware(text, b'-', 3)),
        12 => hardware(text, b':', 6),
        _ => None,
    }
    .ok_or(Refusal::Ask)
}

/// `macaddr8`; an address of six bytes gets `ff:fe` in its middle.
pub fn macaddr8(text: &[u8]) -> Result<[u8; 8], Refusal> {
    let whole = match text.len() {
        23 => hardware(text, b':', 1).or_else(|| hardware(text, b'-', 1)),
        16 => hardware(text, b':', 8),
        _ => None,
    };
    if let Some(value) = whole {
        return Ok(value);
    }
    let [a, b, c, d, e, f] = macaddr(text)?;
    Ok([a, b, c, 0xff, 0xfe, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let a = inet(b"192.168.0.1/24").unwrap();
        assert_eq!((a.address(), a.netmask), (&[192, 168, 0, 1][..], 24));
        assert_eq!(inet(b"10.0.0.1").unwrap().netmask, 32);
        assert_eq!(inet(b"::1").unwrap().netmask, 128);
        assert_eq!(inet(b"10.0.0.1/33"), Err(Refusal::Syntax));
        assert_eq!(inet(b"10.0.0"), Err(Refusal::Ask));
        assert_eq!(inet(b"010.0.0.1"), Err(Refusal::Ask));
        assert!(cidr(b"10.0.0.0/8").is_ok());
        assert!(cidr(b"0.0.0.0/0").is_ok());
        assert!(cidr(b"2001:db8::/32").is_ok());
        assert_eq!(cidr(b"10.0.0.1/8"), Err(Refusal::Syntax));
        assert_eq!(cidr(b"10.128.0.0/8"), Err(Refusal::Syntax));
    }

    #[test]
    fn hardware_addresses() {
        let expected = [0x08, 0x00, 0x2b, 0x01, 0x02, 0x03];
        for text in [
            "08:00:2b:01:02:03",
            "08-00-2B-01-02-03",
            "08002b:010203",
            "08002b-010203",
            "0800.2b01.0203",
            "0800-2b01-0203",
            "08002b010203",
        ] {
            assert_eq!(macaddr(text.as_bytes()), Ok(expected), "{text}");
        }
        assert_eq!(macaddr(b"08:00-2b:01:02:03"), Err(Refusal::Ask));
        assert_eq!(
            macaddr8(b"08:00:2b:01:02:03"),
            Ok([0x08, 0x00, 0x2b, 0xff, 0xfe, 0x01, 0x02, 0x03])
        );
        assert!(macaddr8(b"08:00:2b:01:02:03:04:05").is_ok());
    }
}
