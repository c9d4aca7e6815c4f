//! Limits how many wrong tokens an address may send.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// Wrong tokens that an address may send per minute.
pub(super) const FAILURES_MAX: u32 = 10;
const WINDOW_MS: i64 = 60_000;
/// Limit of addresses in memory; the one whose window began first is forgotten.
const ADDRESSES_MAX: usize = 4096;

/// The wrong tokens of the last minute, by address. All addresses of an IPv6 /64 count as one, because a client may have
/// all of them.
#[derive(Debug, Default)]
pub(super) struct Throttle(HashMap<IpAddr, Window>);

#[derive(Debug)]
struct Window {
    begun_ms: i64,
    failures: u32,
}

impl Throttle {
    /// The seconds that an address must wait before it may send another token; `None` if it need not wait.
    pub fn wait_s(&self, address: IpAddr, now_ms: i64) -> Option<u64> {
        let window = self.0.get(&counted_as(address)).filter(|window| window.failures >= FAILURES_MAX)?;
        let left_ms = window.begun_ms.saturating_add(WINDOW_MS).saturating_sub(now_ms);
        u64::try_from(left_ms).ok().filter(|left| *left > 0).map(|left| left.div_ceil(1000))
    }

    /// Counts a wrong token. Returns whether the address must wait from now on.
    pub fn failed(&mut self, address: IpAddr, now_ms: i64) -> bool {
        let address = counted_as(address);
        let is_over =
            |window: &Window| !(window.begun_ms..window.begun_ms.saturating_add(WINDOW_MS)).contains(&now_ms);
        if !self.0.contains_key(&address) && self.0.len() >= ADDRESSES_MAX {
            self.0.retain(|_, window| !is_over(window));
            let oldest = self.0.iter().min_by_key(|(_, window)| window.begun_ms).map(|(address, _)| *address);
            if let Some(oldest) = oldest.filter(|_| self.0.len() >= ADDRESSES_MAX) {
                self.0.remove(&oldest);
            }
        }
        let fresh = Window { begun_ms: now_ms, failures: 0 };
        let window = self.0.entry(address).or_insert(Window { ..fresh });
        if is_over(window) {
            *window = fresh;
        }
        window.failures = window.failures.saturating_add(1);
        window.failures == FAILURES_MAX
    }
}

/// The address by which an address is counted: itself for IPv4, the first one of its /64 for IPv6.
fn counted_as(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn an_address_waits_after_ten_wrong_tokens_in_a_minute() {
        let mut throttle = Throttle::default();
        for failure in 0..10 {
            assert_eq!(throttle.wait_s(address(1), 1_000), None, "{failure}");
            assert_eq!(throttle.failed(address(1), 1_000), failure == 9);
        }
        assert_eq!(throttle.wait_s(address(1), 1_000), Some(60));
        assert_eq!(throttle.wait_s(address(1), 60_001), Some(1));
        assert_eq!(throttle.wait_s(address(2), 1_000), None, "others do not wait");
        assert_eq!(throttle.wait_s(address(1), 61_000), None);
        throttle.failed(address(1), 61_000);
        assert_eq!(throttle.wait_s(address(1), 61_000), None, "a new window");
    }

    #[test]
    fn addresses_of_an_ipv6_network_count_as_one() {
        let mut throttle = Throttle::default();
        let waits =
            |throttle: &Throttle, address: &str| throttle.wait_s(address.parse().unwrap(), 0).is_some();
        for host in 0..10 {
            throttle.failed(format!("2001:db8:0:1::{host}").parse().unwrap(), 0);
            throttle.failed("::ffff:192.0.2.1".parse().unwrap(), 0);
        }
        assert!(waits(&throttle, "2001:db8:0:1:ffff::1") && !waits(&throttle, "2001:db8:0:2::1"));
        assert!(waits(&throttle, "192.0.2.1") && !waits(&throttle, "::ffff:192.0.2.2"), "IPv4 in IPv6");
    }

    #[test]
    fn memory_is_bounded() {
        let mut throttle = Throttle::default();
        for number in 0..3 * ADDRESSES_MAX as u32 {
            throttle.failed(address(number), i64::from(number));
            assert!(throttle.0.len() <= ADDRESSES_MAX);
        }
    }
}
