//! The signals that stop the program.

use nix::libc::{self, c_int};
use std::mem::MaybeUninit;
use std::ptr;

/// Calls `handler` in another thread on SIGINT, SIGTERM and SIGHUP. A signal that is ignored when
/// the program starts stays ignored, as SIGHUP under `nohup`.
///
/// # Errors
///
/// There is a handler already, or the system does not accept this one.
pub fn on_stop(handler: impl FnMut() + Send + 'static) -> Result<(), ctrlc::Error> {
    let ignored = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].map(|s| (s, is_ignored(s)));
    ctrlc::set_handler(handler)?;
    for (signal, _) in ignored.into_iter().filter(|(_, ignored)| *ignored) {
        // SAFETY: each of these signals may be ignored, and this runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    Ok(())
}

fn is_ignored(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action, the call only writes the current one. All bits of it may be
    // zero, as they are if it fails.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
