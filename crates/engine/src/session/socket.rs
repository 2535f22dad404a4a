//! How much of a COPY may be under way in the connection's socket.

use std::ffi::c_int;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;

/// What is passed in one CopyData message, where the socket's buffer is as the
/// system has it: large enough to be cheap, and fits whenever there is room.
pub const PIECE: usize = 64 << 10;

/// Bytes that the buffer of a Unix socket is asked to hold; Linux doubles it for
/// its own needs. A server that finds it empty goes to sleep, and on a machine
/// with few processors sleeps until the sending thread gets its turn.
const UNDER_WAY: c_int = 1 << 20;

/// Widens the buffer of a Unix socket, as far as the system allows. Gives the
/// bytes to pass in one message: a quarter of the buffer, since three quarters
/// are free when Linux calls a Unix socket writable (`unix_writable`). TCP widens
/// its buffers by itself, until somebody sets them.
pub fn widen(fd: c_int) -> usize {
    widen_to(fd, UNDER_WAY);
    let size = size(fd).and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
    (size / 4).max(PIECE)
}

/// Lets the buffer hold `bytes`, as far as the system allows; never less than it does.
/// The system's limit may be below what it gives by itself, and a buffer that was cut
/// down to it could not be widened again: another socket tries it first.
fn widen_to(fd: c_int, bytes: c_int) {
    let Ok((trial, _)) = UnixStream::pair() else { return };
    set(trial.as_raw_fd(), bytes);
    if size(trial.as_raw_fd()) > size(fd) {
        set(fd, bytes);
    }
}

/// Asks for a buffer of so many bytes. Where that is refused, it stays as it was.
fn set(fd: c_int, bytes: c_int) {
    let wanted = ptr::from_ref(&bytes).cast();
    // SAFETY: the pointer and the length are those of an int that outlives the call.
    unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, wanted, INT);
    }
}

/// The size of an int, as the system asks for it.
const INT: libc::socklen_t = size_of::<c_int>() as libc::socklen_t;

/// The bytes that the socket's buffer holds.
fn size(fd: c_int) -> Option<c_int> {
    let (mut size, mut length) = (0, INT);
    // SAFETY: both pointers are those of live variables; the length is the int's.
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

    /// What `copy_data` relies on: it never waits within a message.
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

    /// As where the system's limit is below what it gives by itself.
    #[test]
    fn a_buffer_never_shrinks() {
        let (socket, _there) = UnixStream::pair().unwrap();
        let before = size(socket.as_raw_fd()).unwrap();
        widen_to(socket.as_raw_fd(), before / 8);
        assert_eq!(size(socket.as_raw_fd()), Some(before));
    }

    fn writable(fd: c_int) -> bool {
        let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd, which lives beyond the call.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }
}
