//! How much of a COPY may be in transit in the connection's socket.

use std::ffi::c_int;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;

/// The maximum size of a CopyData message in bytes if the socket's buffer has the system's default
/// size. It is large enough to be cheap, and fits whenever the socket is writable.
pub const PIECE: usize = 64 << 10;

/// The requested size of the buffer of a Unix socket in bytes; Linux doubles it for its own needs.
/// If the server finds the buffer empty, it sleeps. On a machine with few processors, it then
/// sleeps until the sending thread gets its turn.
const UNDER_WAY: c_int = 1 << 20;

/// Enlarges the buffer of a Unix socket, as far as the system allows. Returns the maximum size of a
/// message in bytes: a quarter of the buffer, since three quarters are free when Linux reports a
/// Unix socket as writable (`unix_writable`). TCP enlarges its buffers by itself, unless their size
/// was set.
pub fn widen(fd: c_int) -> usize {
    widen_to(fd, UNDER_WAY);
    let size = size(fd).and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
    (size / 4).max(PIECE)
}

/// Enlarges the buffer to `bytes`, as far as the system allows; never makes it smaller. The
/// system's limit may be below its default size, and a buffer that was reduced to the limit could
/// not be enlarged again. So another socket tries it first.
fn widen_to(fd: c_int, bytes: c_int) {
    let Ok((trial, _)) = UnixStream::pair() else { return };
    set(trial.as_raw_fd(), bytes);
    if size(trial.as_raw_fd()) > size(fd) {
        set(fd, bytes);
    }
}

/// Requests a buffer of `bytes`. If the system refuses, it keeps its size.
fn set(fd: c_int, bytes: c_int) {
    let wanted = ptr::from_ref(&bytes).cast();
    // SAFETY: the pointer and the length are those of an int that outlives the call.
    unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, wanted, INT);
    }
}

/// The size of an int, for the socket calls.
const INT: libc::socklen_t = size_of::<c_int>() as libc::socklen_t;

/// The size of the socket's buffer in bytes.
fn size(fd: c_int) -> Option<c_int> {
    let (mut size, mut length) = (0, INT);
    // SAFETY: both pointers are those of live variables; the length is that of the int.
    let done = unsafe {
        let size = ptr::from_mut::<c_int>(&mut size).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, size, &mut length)
    };
    (done == 0).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// `copy_data` relies on this: it never waits within a message.
    #[test]
    fn a_message_fits_whenever_the_socket_is_writable() {
        let (mut here, _there) = UnixStream::pair().unwrap();
        let before = size(here.as_raw_fd()).unwrap();
        let piece = widen(here.as_raw_fd());
        assert!(size(here.as_raw_fd()).unwrap() > before, "the buffer grew");
        assert!(piece > PIECE, "{piece}");
        here.set_nonblocking(true).unwrap();
        let bytes = vec![1; piece];
        let mut sent = 0;
        while writable(here.as_raw_fd()) {
            assert_eq!(here.write(&bytes).unwrap(), piece, "after {sent} bytes");
            sent += piece;
        }
        assert!(sent >= piece);
    }

    /// As if the system's limit were below its default size.
    #[test]
    fn a_buffer_never_shrinks() {
        let (socket, _there) = UnixStream::pair().unwrap();
        let before = size(socket.as_raw_fd()).unwrap();
        widen_to(socket.as_raw_fd(), before / 8);
        assert_eq!(size(socket.as_raw_fd()), Some(before));
    }

    fn writable(fd: c_int) -> bool {
        let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd, which outlives the call.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }
}
