//! Listeners: TCP, and Unix sockets with the process of a client.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream as BlockingUnixStream;
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Permissions of a Unix socket: every user of the machine may connect, and the kernel names them.
const EVERYONE: u32 = 0o666;

/// A listener of [`crate::serve`].
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket, with the file that is removed at the end.
    Unix(UnixListener, SocketFile),
}

/// The file of a Unix socket, removed when dropped.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// IP address of the client of a request, an extension of the request.
#[derive(Debug, Clone, Copy)]
pub struct ClientAddress(pub IpAddr);

/// The process at the other end of a Unix socket, an extension of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientProcess {
    /// Its id in the PID namespace of this process; `None` if it is not visible there.
    pub pid: Option<u32>,
    /// Its effective user when it connected.
    pub user: u32,
}

impl ClientProcess {
    /// Returns the process that connected (SO_PEERCRED of unix(7)).
    pub(crate) fn of(stream: &UnixStream) -> Option<Self> {
        let credentials = stream.peer_cred().ok()?;
        // The kernel gives 0 for a process outside of this PID namespace.
        let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
        Some(Self { pid, user: credentials.uid() })
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

/// An accepted connection.
#[derive(Debug)]
pub enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// Listens on a Unix socket at `path`, for all users of the machine. A socket of a process that has ended is replaced.
    /// Must be called in a tokio runtime.
    ///
    /// # Errors
    /// If another process listens there, if the file is not a socket, or if it cannot be made.
    pub fn unix(path: &Path) -> io::Result<Self> {
        match std::fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "exists and is not a socket"));
            }
            Ok(_) if BlockingUnixStream::connect(path).is_ok() => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
            }
            Ok(_) => std::fs::remove_file(path)?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        let file = SocketFile(path.to_owned());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(EVERYONE))?;
        Ok(Self::Unix(listener, file))
    }

    /// Accepts a connection, with the IP address of its client; over a Unix socket the one of this machine.
    pub(crate) async fn accept(&self) -> io::Result<(Accepted, IpAddr)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok((Accepted::Tcp(stream), address.ip().to_canonical()))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Accepted::Unix(stream), IpAddr::V4(Ipv4Addr::LOCALHOST)))
            }
        }
    }
}
