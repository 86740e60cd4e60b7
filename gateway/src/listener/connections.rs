//! How many connections there may be, in all and from one address.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use dashmap::DashMap;

/// Counts client connections.
#[derive(Debug, Default)]
pub struct Connections {
    open: AtomicUsize,
    by_address: DashMap<IpAddr, usize>,
}

/// One open connection.
#[derive(Debug)]
pub struct Connection {
    counted: Arc<Connections>,
    address: IpAddr,
}

impl Connections {
    /// Counts one more, unless a bound is reached.
    pub fn enter(self: &Arc<Self>, address: IpAddr, max: usize, max_per_address: usize) -> Option<Connection> {
        if self.open.fetch_add(1, Ordering::Relaxed) >= max {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let mut from_address = self.by_address.entry(address).or_insert(0);
        *from_address += 1;
        let admitted = *from_address <= max_per_address;
        drop(from_address);
        let connection = Connection { counted: Arc::clone(self), address };
        admitted.then_some(connection)
    }

    /// Open connections.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counted.open.fetch_sub(1, Ordering::Relaxed);
        if let dashmap::Entry::Occupied(mut entry) = self.counted.by_address.entry(self.address) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

/// The bound where the operator states none: 45 % of the descriptors, so that each connection may have one to a replica
/// and some stay for files and the operator's listener.
pub fn default_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
    usize::try_from(limit / 100 * 45).unwrap_or(usize::MAX).max(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

    #[test]
    fn a_refused_connection_leaves_no_trace_and_a_closed_one_makes_room() {
        let connections = Arc::new(Connections::default());
        let first = connections.enter(HERE, 3, 2).expect("room");
        let _second = connections.enter(HERE, 3, 2).expect("room");
        assert!(connections.enter(HERE, 3, 2).is_none(), "two from one address");
        let _third = connections.enter(THERE, 3, 2).expect("another address");
        assert!(connections.enter(THERE, 3, 2).is_none(), "three in all");
        assert_eq!(connections.open(), 3);
        drop(first);
        assert!(connections.enter(HERE, 3, 2).is_some());
    }

    #[test]
    fn nothing_is_kept_of_addresses_that_left() {
        let connections = Arc::new(Connections::default());
        drop(connections.enter(HERE, 1, 1));
        assert_eq!((connections.open(), connections.by_address.len()), (0, 0));
    }
}
