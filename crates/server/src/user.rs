//! The user of a client on this machine.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::sync::OnceCell;

/// Tables of the TCP sockets in the network namespace of this process (proc_net_tcp(5)).
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// The state of a connection whose ends are both open. Sockets in other states may have lost their owner: then the kernel
/// shows the user 0.
const ESTABLISHED: &str = "01";

/// The user at the other end of a connection, an extension of the request.
#[derive(Debug, Clone)]
pub struct ClientUser {
    client: SocketAddr,
    server: SocketAddr,
    /// Known after the first lookup, which reads the tables of the kernel.
    id: Arc<OnceCell<u32>>,
}

impl ClientUser {
    pub(crate) fn new(client: SocketAddr, server: SocketAddr) -> Self {
        Self { client: canonical(client), server: canonical(server), id: Arc::default() }
    }

    /// The user of a connection over a Unix socket.
    pub(crate) fn known(id: u32) -> Self {
        let unused = SocketAddr::from(([0; 4], 0));
        Self { client: unused, server: unused, id: Arc::new(OnceCell::new_with(Some(id))) }
    }

    /// Returns the ID of the user who created the client's socket, in the user namespace of this process. `None` if the
    /// client is in another network namespace or on another machine.
    pub async fn id(&self) -> Option<u32> {
        let (client, server) = (self.client, self.server);
        let found = self.id.get_or_try_init(|| async move {
            let found = tokio::task::spawn_blocking(move || find(client, server)).await;
            found.ok().flatten().ok_or(())
        });
        found.await.ok().copied()
    }
}

fn find(client: SocketAddr, server: SocketAddr) -> Option<u32> {
    TABLES.iter().find_map(|table| {
        let lines = BufReader::new(File::open(table).ok()?).lines();
        lines.map_while(Result::ok).find_map(|line| user(&line, client, server))
    })
}

/// Returns the user of the socket in a line, if it is the client's end of the connection.
fn user(line: &str, client: SocketAddr, server: SocketAddr) -> Option<u32> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, local, remote, ESTABLISHED, _, _, _, user, ..] = fields[..] else { return None };
    (address(local)? == client && address(remote)? == server).then(|| user.parse().ok()).flatten()
}

/// Parses an address: words of 32 bits in the byte order of the machine, and a port, in hexadecimal digits.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let bytes = ip.as_bytes().chunks(8).map(word).collect::<Option<Vec<_>>>()?.concat();
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(bytes) => IpAddr::from(bytes),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?),
    };
    Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
}

/// A client may reach an IPv4 address through an IPv6 socket.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_are_words_in_the_byte_order_of_the_machine() {
        let parsed = |text: &str| address(text).map(|address| address.to_string());
        assert_eq!(parsed("0100007F:1F90").as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(parsed("00000000000000000000000001000000:1BCD").as_deref(), Some("[::1]:7117"));
        assert_eq!(parsed("0000000000000000FFFF00000100007F:0016").as_deref(), Some("127.0.0.1:22"));
        assert_eq!(
            parsed("B80D01200000000067452301EFCDAB89:0001").as_deref(),
            Some("[2001:db8::123:4567:89ab:cdef]:1")
        );
        for text in
            ["", "0100007F", "0100007F:", "0100007:1", "0100007F0100007F:1", "local_address:1", "é100007F:1"]
        {
            assert_eq!(parsed(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_client_of_a_connection_is_found_while_it_is_open() {
        for ip in ["127.0.0.1", "::1"] {
            // A container may have no IPv6.
            let Ok(listener) = TcpListener::bind((ip, 0)) else { continue };
            let server = listener.local_addr().unwrap();
            let client = TcpStream::connect(server).unwrap();
            let (_accepted, address) = listener.accept().unwrap();
            let own = rustix::process::geteuid().as_raw();
            assert_eq!(find(address, server), Some(own), "{ip}");
            drop(client);
            assert_eq!(find(address, server), None, "{ip}: a closed socket has no user");
        }
    }
}
